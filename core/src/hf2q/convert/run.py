"""`convert`: a checkpoint or a GGUF file becomes a GGUF file. The way in of the library and of the command line."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from hf2q.codec import QuantCodec, thread_count
from hf2q.convert.choices import Planned
from hf2q.convert.hub_source import find_reference
from hf2q.convert.importance import read_importance
from hf2q.convert.layout import folder_path, recipe_for, refuse_for_layout
from hf2q.convert.making import role_of, settings_of, source_name, stamped
from hf2q.convert.preflight import check_fallbacks, check_folder, check_output, check_space, check_template
from hf2q.convert.prepare import Request, prepare
from hf2q.convert.projector import names_projector, projector_path, together
from hf2q.convert.recording import Facts, Output, Recording, identify_imatrix, recording
from hf2q.convert.sidecars import Sidecar, plan_sidecars
from hf2q.convert.target import Target, joined, limited, output_path, target_for
from hf2q.convert.unbroken import unbroken
from hf2q.errors import UsageError, WriteError
from hf2q.plugins import Plugins
from hf2q.types import Plan, PolicyOptions, Record, TensorPlan

log = logging.getLogger(__name__)


class Summary(Record, frozen=True, kw_only=True):
    """What a conversion did, or with `dry_run` would do.

    output   path of the file, of the first when there are several;  files  of all
    nbytes   their size together (of the tensors alone after a dry run)
    seconds  from the first look at the source to the file in place
    sidecars   paths of the checkpoint's files that lie beside the output now;  receipt  path of the receipt, or None
    projector  the same of the projector beside it, if one was wanted; where only that was written, it is the output
    """

    output: str
    files: tuple[str, ...]
    dry_run: bool
    plan: Plan
    nbytes: int
    seconds: float
    sidecars: tuple[str, ...] = ()
    receipt: str | None = None
    projector: Summary | None = None

    @property
    def bits_per_weight(self) -> float:
        """Of the tensors, without header and padding."""
        return 8 * self.plan.nbytes / max(1, self.plan.parameters)

    @property
    def fallbacks(self) -> tuple[TensorPlan, ...]:
        """Tensors that got another type than the recipe's because of their shape."""
        return tuple(tensor for tensor in self.plan.tensors if tensor.fallback_from)


def convert(
    source: str | os.PathLike[str] | None,
    recipe: str,
    output: str | os.PathLike[str] | None = None,
    *,
    format: str = "gguf",
    repo: str | None = None,
    revision: str | None = None,
    via: str = "auto",
    mtp: bool = True,
    mmproj: bool = False,
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
    provenance: bool = True,
    sidecars: bool = True,
    receipt: bool = True,
    plugins: Plugins | None = None,
    progress: Callable[[Plan, TensorPlan, int], None] | None = None,
    downloading: Callable[[str, int, int], None] | None = None,
) -> Summary:
    """Convert a checkpoint directory, a repository of the Hub or a GGUF file by the recipe of that name.

    source       a directory; a GGUF file, of several the first; a repository (``org/name`` or its address), when
                 nothing here has that name; None when `repo` names one, whatever is here
    revision     of a repository: a branch, a tag or a commit; default its main branch
    output       the file, or a directory for a file of the usual name; default the current directory
    format       the output format, by the name of its writer; of one that is a folder, `output` is the folder, and all
                 options that are about GGUF files are refused
    threads      default `hf2q.codec.thread_count`; the bytes do not depend on it
    force        replace an existing file
    provenance   write the keys hf2q.* at the end of the metadata; without them all keys are llama.cpp's
    sidecars     copy tokenizer.json, config.json and the like beside the output
    receipt      write a receipt beside the output
    dry_run      plan and check only; problems with the output are logged, not raised
    no_fallback  refuse when a tensor's shape does not fit the recipe
    options      what is asked of the recipe besides its name; `has_imatrix` is set here
    imatrix      an importance matrix; `include_weights` and `exclude_weights` are parts of names of entries, to use
                 only those or all but those
    plugins      default `Plugins.load()`
    progress     called after each write with the plan, the tensor and the bytes of tensor data written so far
    downloading  called as files arrive with the path of one, and the bytes of all that are here and that there will be

    For several output files, whose names are made from `output` (``NAME-00001-of-00002.gguf``):

    split_max_size     most bytes of tensors in a file;  split_max_tensors  most tensors in a file
    keep_split         as many files as the source has, with the same tensors

    For checkpoints only:

    via          intermediate type that values pass through, as with llama.cpp: auto, f16, bf16 or f32
    mtp          keep MTP blocks
    mmproj       write the vision tower too, as a projector beside the model; alone, when the name of `output` contains
                 mmproj. Its type is the recipe's when that is f32, f16, bf16 or auto, else F16; it is always one file
    pre          name of the pre-tokenizer, taken instead of comparing structures

    For GGUF files only:

    allow_requantize   decode tensors that are quantized already, and encode them again

    Errors: UnknownNameError, UsageError and SourceError before anything is written; EncodeError and WriteError then,
    leaving nothing behind.
    """
    started = time.monotonic()
    workers = thread_count(threads)
    plugins = Plugins.load() if plugins is None else plugins
    entry = plugins.writer(format)
    chosen = recipe_for(recipe, entry, plugins)
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
        mmproj=mmproj,
        writer=entry if entry.layout else None,
        only_projector=mmproj and output is not None and names_projector(Path(output)),
    )
    if request.only_projector and not (split_max_size is None and split_max_tensors is None):
        raise UsageError("a projector is one file: --split-max-size and --split-max-tensors cannot be followed")
    if entry.layout:
        refuse_for_layout(
            entry,
            {
                "--split-max-size": split_max_size is not None,
                "--split-max-tensors": split_max_tensors is not None,
                "--no-sidecars": not sidecars,
            },
        )
    matrix = identify_imatrix(importance) if importance is not None and (provenance or receipt) else None
    settings = settings_of(request, include_weights, exclude_weights)
    reference = find_reference(source, repo, revision)
    place = os.fspath(source) if reference is None and source is not None else reference
    assert place is not None
    with prepare(place, request, plugins, weights=not dry_run, progress=downloading) as prepared:
        if provenance and not entry.layout:
            prepared = stamped(prepared, chosen.name, settings, matrix.sha256 if matrix else "")
        plan = prepared.planned.plan
        check_fallbacks(plan, allowed=not no_fallback)
        shards = prepared.shards or limited(plan, split_max_size, split_max_tensors)
        if entry.layout:
            name = source_name(prepared).name.rpartition("/")[2].removesuffix(".gguf")
            path = folder_path(None if output is None else os.fspath(output), name, chosen.name, entry.suffix)
        else:
            check_template(plan, plugins)
            path = output_path(output, plan, entry.suffix)
        target = target_for(path, plan, shards, entry)
        everything, planned = target, prepared.planned
        outputs = [Output(role=role_of(plan), plan=plan, target=target)]
        if prepared.projector is not None:
            other = prepared.projector.plan
            named = output is not None and path == Path(output).expanduser()
            beside = target_for(projector_path(path, other, entry.suffix, default=not named), other, (), entry)
            everything, planned = joined(target, beside), together(prepared.planned, prepared.projector)
            outputs.append(Output(role=role_of(other), plan=other, target=beside))
        copies: tuple[Sidecar, ...] = ()
        try:
            if target.folder is not None:
                names = [path.name for path in target.paths]
                check_folder(target.folder, prepared.folder, prepared.files, names, force=force)
            for path in everything.paths if target.folder is None else ():
                check_output(path, prepared.folder, prepared.files, suffix=entry.suffix, force=force)
            check_space(everything.output, planned.plan)
            if sidecars and target.folder is None:
                copies = plan_sidecars(prepared.folder, everything.paths[0].parent, everything.paths, force=force)
        except (UsageError, WriteError) as error:
            if not dry_run:
                raise
            log.warning("%s", error.message)
        written = None
        if not dry_run:
            facts = Facts(
                prepared=prepared,
                outputs=tuple(outputs),
                everything=planned,
                recipe=chosen.name,
                settings=settings,
                imatrix=matrix,
                sidecars=copies,
                threads=workers,
            )
            with recording(facts, receipt=receipt) as record, ExitStack() as naming:

                def ready() -> None:
                    record.ready()
                    naming.enter_context(unbroken())

                _write(planned, everything, prepared.codec or plugins.codec, workers, progress, record, ready)
                written = record.finish()

    def summary(target: Target, plan: Plan, projector: Summary | None = None) -> Summary:
        return Summary(
            output=str(target.output),
            files=tuple(str(path) for path in target.paths),
            dry_run=dry_run,
            plan=plan,
            nbytes=plan.nbytes if dry_run else sum(path.stat().st_size for path in target.paths),
            seconds=time.monotonic() - started,
            sidecars=() if target is not outputs[0].target else tuple(str(copy.target) for copy in copies),
            receipt=None if written is None or target is not outputs[0].target else str(written),
            projector=projector,
        )

    return summary(target, plan, None if prepared.projector is None else summary(beside, prepared.projector.plan))


def _write(
    planned: Planned,
    target: Target,
    codecs: Callable[[str], QuantCodec],
    workers: int,
    progress: Callable[[Plan, TensorPlan, int], None] | None,
    record: Recording,
    ready: Callable[[], None],
) -> None:
    from hf2q.convert.pipeline import stream

    plan = planned.plan
    stream(
        plan,
        planned.rows,
        codecs,
        lambda: record.open_writer(target.open_writer),
        threads=workers,
        importance=planned.importance,
        progress=None if progress is None else lambda tensor, written: progress(plan, tensor, written),
        ready=ready,
    )
