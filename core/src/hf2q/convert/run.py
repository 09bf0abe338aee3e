"""`convert`: a checkpoint directory becomes a GGUF file. The library's way in; the command line calls nothing else."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from hf2q.codec import thread_count
from hf2q.convert.metadata import default_name
from hf2q.convert.names import find_recipe
from hf2q.convert.plan import make_plan
from hf2q.convert.preflight import check_fallbacks, check_output, check_space
from hf2q.convert.source import open_source
from hf2q.errors import UsageError, WriteError
from hf2q.plugins import Plugins
from hf2q.types import Plan, Record, TensorPlan, Writer, resolve

log = logging.getLogger(__name__)


class Summary(Record, frozen=True, kw_only=True):
    """What a conversion did, or with `dry_run` would do.

    output   path of the file;  nbytes  its size (of the tensors alone after a dry run)
    seconds  from the first look at the source to the file in place
    """

    output: str
    dry_run: bool
    plan: Plan
    nbytes: int
    seconds: float

    @property
    def bits_per_weight(self) -> float:
        """Of the tensors, without header and padding."""
        return 8 * self.plan.nbytes / max(1, self.plan.parameters)

    @property
    def fallbacks(self) -> tuple[TensorPlan, ...]:
        """Tensors that got another type than the recipe's because of their shape."""
        return tuple(tensor for tensor in self.plan.tensors if tensor.fallback_from)


def convert(
    source: str | os.PathLike[str],
    recipe: str,
    output: str | os.PathLike[str] | None = None,
    *,
    via: str = "auto",
    mtp: bool = True,
    threads: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    no_fallback: bool = False,
    pre: str | None = None,
    plugins: Plugins | None = None,
    progress: Callable[[Plan, TensorPlan, int], None] | None = None,
) -> Summary:
    """Convert the checkpoint in the directory `source` by the recipe of that name.

    output       the file, or a directory for a file of the usual name; default the current directory
    via          intermediate type that values pass through, as with llama.cpp: auto, f16, bf16 or f32
    mtp          keep MTP blocks
    threads      default `hf2q.codec.thread_count`; the bytes do not depend on it
    force        replace an existing file
    dry_run      plan and check only; problems with the output are logged, not raised
    no_fallback  refuse when a tensor's shape does not fit the recipe
    pre          name of the pre-tokenizer, taken instead of comparing structures
    plugins      default `Plugins.load()`
    progress     called after each write with the plan, the tensor and the bytes of tensor data written so far

    Errors: UnknownNameError, UsageError and SourceError before anything is written; EncodeError and WriteError then,
    leaving nothing behind.
    """
    started = time.monotonic()
    workers = thread_count(threads)
    plugins = Plugins.load() if plugins is None else plugins
    chosen = find_recipe(plugins, recipe)
    opened = open_source(os.fspath(source))
    planned = make_plan(opened, chosen, plugins, via=via, mtp=mtp, pre=pre)
    plan = planned.plan
    check_fallbacks(plan, allowed=not no_fallback)
    entry = plugins.writer("gguf")
    path = _output_path(output, plan, entry.suffix)
    try:
        check_output(path, opened.directory, force=force)
        check_space(path, plan)
    except (UsageError, WriteError) as error:
        if not dry_run:
            raise
        log.warning("%s", error.message)
    if not dry_run:
        from hf2q.convert.pipeline import stream

        writer: type[Writer] = resolve(entry.writer)
        stream(
            plan,
            planned.rows,
            plugins.codec,
            lambda: writer(str(path), plan),
            threads=workers,
            progress=None if progress is None else lambda tensor, written: progress(plan, tensor, written),
        )
    return Summary(
        output=str(path),
        dry_run=dry_run,
        plan=plan,
        nbytes=plan.nbytes if dry_run else path.stat().st_size,
        seconds=time.monotonic() - started,
    )


def _output_path(output: str | os.PathLike[str] | None, plan: Plan, suffix: str) -> Path:
    path = Path(output).expanduser() if output is not None else Path()
    if path.is_dir():
        return path / f"{default_name(plan.metadata, plan.recipe)}{suffix}"
    return path
