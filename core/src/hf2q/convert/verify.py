"""`verify`: is a file what its source becomes? Every tensor is made again and compared, and so is everything else.

The plan is made from the source as `convert` makes it, by what is recorded of the file's making, with the types that
the file has; its tensors stream through the pipeline into a writer that compares. Nothing is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from hf2q.codec import thread_count
from hf2q.convert.compare import ComparingWriter, TensorCheck, check_tensors
from hf2q.convert.examine import KeyCheck, Problem, check_keys, check_layout
from hf2q.convert.gguf_source import is_gguf
from hf2q.convert.pipeline import stream
from hf2q.convert.prepare import Prepared, prepare
from hf2q.convert.provenance import with_provenance
from hf2q.convert.recorded import Recorded, read_record
from hf2q.convert.remake import find_importance, find_source, refuse_for_projector, request_again, types_of
from hf2q.convert.selected import selected_files
from hf2q.formats.digest import BackgroundDigests, FileDigest
from hf2q.formats.gguf import GgufFile, GgufTensor
from hf2q.formats.gguf.shards import open_shards, split_fields
from hf2q.plugins import Plugins
from hf2q.types import MetadataField, Plan, Record, TensorPlan


class Verification(Record, frozen=True, kw_only=True):
    """What came of it.

    files     paths, the first shard first;  source  what they were made again from
    receipt   path of the receipt that was followed, or None
    recorded  whether receipt or keys say how the file was made; if not, types are taken from the file unquestioned
    tensors   one for each of file or plan;  keys, problems  only what is not as it should be
    seconds   from beginning to end
    """

    files: tuple[str, ...]
    source: str
    receipt: str | None
    recorded: bool
    recipe: str
    tensors: tuple[TensorCheck, ...]
    keys: tuple[KeyCheck, ...]
    problems: tuple[Problem, ...]
    seconds: float

    @property
    def equal(self) -> bool:
        """Whether nothing at all differs."""
        return not (self.keys or self.problems or self.wrong)

    @property
    def wrong(self) -> tuple[TensorCheck, ...]:
        """Tensors that are not as they should be."""
        return tuple(tensor for tensor in self.tensors if tensor.status != "ok")


def verify(
    file: str | os.PathLike[str],
    source: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    imatrix: str | os.PathLike[str] | None = None,
    recipe: str | None = None,
    via: str | None = None,
    mtp: bool | None = None,
    pre: str | None = None,
    threads: int | None = None,
    plugins: Plugins | None = None,
    progress: Callable[[Plan, TensorPlan, int], None] | None = None,
    downloading: Callable[[str, int, int], None] | None = None,
) -> Verification:
    """Make `file`, a GGUF file or the first of several, again from its source, and compare everything.

    source    a checkpoint directory, a repository, or a GGUF file; may be left out when a repository is recorded
    revision  of a repository; default the recorded commit, if it is that repository, else its main branch
    imatrix   the importance matrix, when one was used
    recipe, via, mtp, pre   as for `convert`; what is left out is taken from the receipt, else from the file's keys
    progress  called after each comparison with the plan, the tensor and the bytes of tensor data done so far
    downloading  called as files arrive, as for `convert`

    Differences are no errors. Errors: UsageError when source or matrix are not known; FormatError and other
    SourceErrors for files that are damaged beyond comparing; what planning raises.
    """
    started = time.monotonic()
    workers = thread_count(threads)
    plugins = Plugins.load() if plugins is None else plugins
    with ExitStack() as stack:
        files = open_shards(os.fspath(file))
        for opened in files:
            stack.callback(opened.close)
        recorded = read_record(files, plugins, recipe)
        if recorded.projector:
            refuse_for_projector(files[0].path, imatrix=imatrix, via=via, mtp=mtp, pre=pre)
        origin = find_source(recorded, source, revision, files)
        gguf = isinstance(origin, str) and is_gguf(origin)
        importance = find_importance(recorded, imatrix, files[0], inherits=gguf)
        wanted: dict[str, str] = {}
        retype = types_of(files, plugins, importance, wanted)
        request = request_again(origin, recorded, importance, via, mtp, pre, retype)
        prepared = stack.enter_context(prepare(origin, request, plugins, progress=downloading))
        digests = stack.enter_context(_digests(recorded, prepared, files))
        tensors = {tensor.name: (opened, tensor) for opened in files for tensor in opened.tensors.values()}
        plan = prepared.planned.plan
        checks, comparable = check_tensors(plan, wanted if recorded.made is not None else {}, tensors)
        for name, difference in _compare(prepared, comparable, tensors, plugins, workers, progress).items():
            status = "differs" if checks[name].status == "ok" else checks[name].status
            checks[name] = msgspec.structs.replace(checks[name], status=status, difference=difference)
        keys = [
            check for opened, fields in _expected_keys(files, plan, recorded) for check in check_keys(opened, fields)
        ]
        problems = [problem for opened in files for problem in check_layout(opened)]
        problems += _order(files, plan, tensors)
        problems += _wrong_digests(recorded, prepared, files, digests.result())
    return Verification(
        files=tuple(opened.path for opened in files),
        source=origin if isinstance(origin, str) else f"{origin.repo} at {origin.revision or 'its main branch'}",
        receipt=None if recorded.receipt_path is None else str(recorded.receipt_path),
        recorded=recorded.made is not None,
        recipe=recorded.recipe.name,
        tensors=tuple(checks.values()),
        keys=tuple(keys),
        problems=tuple(problems),
        seconds=time.monotonic() - started,
    )


def _compare(
    prepared: Prepared,
    comparable: tuple[TensorPlan, ...],
    tensors: Mapping[str, tuple[GgufFile, GgufTensor]],
    plugins: Plugins,
    workers: int,
    progress: Callable[[Plan, TensorPlan, int], None] | None,
) -> Mapping[str, object]:
    plan = msgspec.structs.replace(prepared.planned.plan, tensors=comparable)
    writer = ComparingWriter(tensors)
    stream(
        plan,
        prepared.planned.rows,
        plugins.codec,
        lambda: writer,
        threads=workers,
        importance=prepared.planned.importance,
        progress=None if progress is None else lambda tensor, done: progress(plan, tensor, done),
    )
    return writer.differences


def _expected_keys(
    files: Sequence[GgufFile], plan: Plan, recorded: Recorded
) -> Iterator[tuple[GgufFile, tuple[MetadataField, ...]]]:
    """Each file with the keys that it should have."""
    metadata = plan.metadata
    if recorded.stamped and recorded.made is not None:
        metadata = with_provenance(metadata, recorded.made)
    for index, file in enumerate(files):
        split = split_fields(index, len(files), len(plan.tensors)) if len(files) > 1 else ()
        yield file, (*metadata, *split) if index == 0 else split


def _order(
    files: Sequence[GgufFile], plan: Plan, tensors: Mapping[str, tuple[GgufFile, GgufTensor]]
) -> Iterator[Problem]:
    planned = {tensor.name for tensor in plan.tensors}
    found = [name for name in tensors if name in planned]
    expected = [tensor.name for tensor in plan.tensors if tensor.name in tensors]
    for one, other in zip(found, expected, strict=True):
        if one != other:
            yield Problem(file=files[0].path, what="order", message=f"tensor {one} comes where {other} is expected")
            return


def _digests(recorded: Recorded, prepared: Prepared, files: Sequence[GgufFile]) -> BackgroundDigests:
    """Hash, beside the comparison, what the receipt has digests of."""
    if recorded.receipt is None:
        return BackgroundDigests({})
    origin = prepared.origin
    known = {file.path: FileDigest(size=file.size, sha256=file.sha256) for file in origin.files} if origin else {}
    listed = {file.path for file in recorded.receipt.source.files}
    selected = selected_files(prepared.folder, prepared.files, origin)
    wanted = {f"source/{path}": place for path, place in selected.items() if path in listed}
    wanted |= {f"output/{index}": Path(file.path) for index, file in enumerate(files)}
    return BackgroundDigests(wanted, {f"source/{path}": digest for path, digest in known.items()})


def _wrong_digests(
    recorded: Recorded, prepared: Prepared, files: Sequence[GgufFile], found: Mapping[str, FileDigest]
) -> Iterator[Problem]:
    if recorded.receipt is None:
        return
    for index, (file, output) in enumerate(zip(files, recorded.outputs, strict=True)):
        digest = found[f"output/{index}"]
        if (digest.size, digest.sha256) != (output.size, output.sha256):
            yield Problem(
                file=file.path,
                what="sha256",
                message=f"{digest.size} bytes with SHA-256 {digest.sha256}, "
                f"by the receipt {output.size} with {output.sha256}",
            )
    for listed in recorded.receipt.source.files:
        there = found.get(f"source/{listed.path}")
        if there is None:
            yield Problem(file=listed.path, what="source", message="the receipt lists it, but the source lacks it")
        elif there.sha256 != listed.sha256:
            yield Problem(
                file=listed.path,
                what="source",
                message=f"SHA-256 {there.sha256}, by the receipt {listed.sha256}: it is not the source of then",
            )
