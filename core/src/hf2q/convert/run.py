"""`convert`: a checkpoint or a GGUF file becomes a GGUF file. The way in of the library and of the command line."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from hf2q.codec import thread_count
from hf2q.convert.choices import Planned
from hf2q.convert.importance import read_importance
from hf2q.convert.metadata import default_name
from hf2q.convert.names import find_recipe
from hf2q.convert.preflight import check_fallbacks, check_output, check_space
from hf2q.convert.prepare import Request, prepare
from hf2q.convert.shards import cut_plan, group_tensors, shard_paths
from hf2q.errors import UsageError, WriteError
from hf2q.formats.gguf.shards import ShardedWriter
from hf2q.plugins import Plugins
from hf2q.types import Plan, PolicyOptions, Record, TensorPlan, Writer, WriterEntry, resolve

log = logging.getLogger(__name__)


class Summary(Record, frozen=True, kw_only=True):
    """What a conversion did, or with `dry_run` would do.

    output   path of the file, of the first when there are several;  files  of all
    nbytes   their size together (of the tensors alone after a dry run)
    seconds  from the first look at the source to the file in place
    """

    output: str
    files: tuple[str, ...]
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
    imatrix: str | os.PathLike[str] | None = None,
    include_weights: Sequence[str] = (),
    exclude_weights: Sequence[str] = (),
    options: PolicyOptions | None = None,
    allow_requantize: bool = False,
    keep_split: bool = False,
    split_max_size: int | None = None,
    split_max_tensors: int | None = None,
    plugins: Plugins | None = None,
    progress: Callable[[Plan, TensorPlan, int], None] | None = None,
) -> Summary:
    """Convert a checkpoint directory or a GGUF file by the recipe of that name.

    source       a directory, or a GGUF file; of several, the first
    output       the file, or a directory for a file of the usual name; default the current directory
    threads      default `hf2q.codec.thread_count`; the bytes do not depend on it
    force        replace an existing file
    dry_run      plan and check only; problems with the output are logged, not raised
    no_fallback  refuse when a tensor's shape does not fit the recipe
    options      what is asked of the recipe besides its name; `has_imatrix` is set here
    imatrix      an importance matrix; `include_weights` and `exclude_weights` are parts of names of entries, to use
                 only those or all but those
    plugins      default `Plugins.load()`
    progress     called after each write with the plan, the tensor and the bytes of tensor data written so far

    For several output files, whose names are made from `output` (``NAME-00001-of-00002.gguf``):

    split_max_size     most bytes of tensors in a file;  split_max_tensors  most tensors in a file
    keep_split         as many files as the source has, with the same tensors

    For checkpoints only:

    via          intermediate type that values pass through, as with llama.cpp: auto, f16, bf16 or f32
    mtp          keep MTP blocks
    pre          name of the pre-tokenizer, taken instead of comparing structures

    For GGUF files only:

    allow_requantize   decode tensors that are quantized already, and encode them again

    Errors: UnknownNameError, UsageError and SourceError before anything is written; EncodeError and WriteError then,
    leaving nothing behind.
    """
    started = time.monotonic()
    workers = thread_count(threads)
    plugins = Plugins.load() if plugins is None else plugins
    chosen = find_recipe(plugins, recipe)
    if keep_split and (split_max_size is not None or split_max_tensors is not None):
        raise UsageError("--keep-split and --split-max-size or --split-max-tensors contradict each other")
    importance = read_importance(imatrix, include_weights, exclude_weights)
    request = Request(
        recipe=chosen,
        options=msgspec.structs.replace(options or PolicyOptions(), has_imatrix=importance is not None),
        importance=importance,
        via=via,
        mtp=mtp,
        pre=pre,
        allow_requantize=allow_requantize,
        keep_split=keep_split,
    )
    with prepare(os.fspath(source), request, plugins) as prepared:
        plan = prepared.planned.plan
        check_fallbacks(plan, allowed=not no_fallback)
        entry = plugins.writer("gguf")
        shards = prepared.shards or _limited(plan, split_max_size, split_max_tensors)
        target = _target(_output_path(output, plan, entry.suffix), plan, shards, entry)
        try:
            for path in target.paths:
                check_output(path, prepared.folder, prepared.files, suffix=entry.suffix, force=force)
            check_space(target.paths[0], plan)
        except (UsageError, WriteError) as error:
            if not dry_run:
                raise
            log.warning("%s", error.message)
        if not dry_run:
            _write(prepared.planned, target, plugins, workers, progress)
    return Summary(
        output=str(target.paths[0]),
        files=tuple(str(path) for path in target.paths),
        dry_run=dry_run,
        plan=plan,
        nbytes=plan.nbytes if dry_run else sum(path.stat().st_size for path in target.paths),
        seconds=time.monotonic() - started,
    )


class Target(Record, frozen=True, kw_only=True):
    """Where a plan goes: the files, and how to open what writes them."""

    paths: tuple[Path, ...]
    open_writer: Callable[[], Writer]


def _limited(plan: Plan, max_size: int | None, max_tensors: int | None) -> tuple[int, ...]:
    """The shards that limits ask for; none when there is no limit, or everything fits into one file."""
    if max_size is None and max_tensors is None:
        return ()
    counts = group_tensors(plan, max_size, max_tensors)
    return counts if len(counts) > 1 else ()


def _target(path: Path, plan: Plan, shards: Sequence[int], entry: WriterEntry) -> Target:
    if not shards:
        writer: type[Writer] = resolve(entry.writer)
        return Target(paths=(path,), open_writer=lambda: writer(str(path), plan))
    paths = shard_paths(path, len(shards), entry.suffix)
    plans = cut_plan(plan, shards)
    return Target(paths=paths, open_writer=lambda: ShardedWriter([str(one) for one in paths], plans))


def _write(
    planned: Planned,
    target: Target,
    plugins: Plugins,
    workers: int,
    progress: Callable[[Plan, TensorPlan, int], None] | None,
) -> None:
    from hf2q.convert.pipeline import stream

    plan = planned.plan
    stream(
        plan,
        planned.rows,
        plugins.codec,
        target.open_writer,
        threads=workers,
        importance=planned.importance,
        progress=None if progress is None else lambda tensor, written: progress(plan, tensor, written),
    )


def _output_path(output: str | os.PathLike[str] | None, plan: Plan, suffix: str) -> Path:
    if output is not None and not os.fspath(output):
        raise UsageError("the output is named by an empty text", hint="-o FILE names it; without -o it goes here")
    try:
        path = Path(output).expanduser() if output is not None else Path()
    except RuntimeError as error:  # the home of a user that does not exist
        raise WriteError(f"{output} cannot be written: {error}") from None
    if output is not None and os.fspath(output).endswith("/") and not path.is_dir():
        raise WriteError(f"{output} cannot be written: there is no such directory", hint="create it first")
    if path.is_dir():
        return path / f"{default_name(plan.metadata, plan.recipe)}{suffix}"
    return path
