"""What a conversion leaves beside its output: sidecars and a receipt. `run` calls it around the streaming.

Files of the source are hashed in a thread beside the conversion, the output while it is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import hf2q
from hf2q.convert.choices import Planned
from hf2q.convert.importance import Importance
from hf2q.convert.making import checkout_commit, provenance_of, source_name
from hf2q.convert.prepare import Prepared
from hf2q.convert.provenance import Settings, readable
from hf2q.convert.receipt import (
    Converter,
    ImatrixIdentity,
    OutputFile,
    OutputPlan,
    Receipt,
    RecipeUse,
    SourceFile,
    SourceIdentity,
    TypeTotal,
    receipt_path,
    write_receipt,
)
from hf2q.convert.receipt import Sidecar as CopiedFile
from hf2q.convert.selected import selected_files
from hf2q.convert.sidecars import Sidecar, copy_sidecars
from hf2q.convert.target import Target
from hf2q.errors import WriteError
from hf2q.formats.digest import BackgroundDigests, FileDigest, digest_file
from hf2q.types import Plan, Record, Writer


@runtime_checkable
class HashingWriter(Protocol):
    """A writer that can hash what it writes; other writers' files are read once more."""

    def start_hash(self) -> None:
        """Begin, before the first `write`."""
        ...

    def hashes(self) -> Mapping[str, str]:
        """After `close`: SHA-256 by path."""
        ...


class Output(Record, frozen=True, kw_only=True):
    """The files of one plan. `role` as in `hf2q.convert.receipt.OutputFile`."""

    role: Literal["model", "projector"]
    plan: Plan
    target: Target


class Facts(Record, frozen=True, kw_only=True):
    """What a receipt tells besides digests. `everything` is all that is streamed, `recipe` what was asked for."""

    prepared: Prepared
    outputs: tuple[Output, ...]
    everything: Planned
    recipe: str
    settings: Settings
    imatrix: ImatrixIdentity | None
    sidecars: tuple[Sidecar, ...]
    threads: int

    @property
    def receipt_path(self) -> Path:
        """Beside the first file."""
        return receipt_path(self.outputs[0].target.paths[0])


class Recording:
    """One conversion while it goes on: `open_writer`, `ready` and `finish` are called in this order."""

    def __init__(self, facts: Facts, digests: BackgroundDigests | None) -> None:
        """Without `digests` there is no receipt."""
        self._facts = facts
        self._digests = digests
        self._started = _now()
        self._writer: HashingWriter | None = None
        self._commit: str | None = None

    def open_writer(self, make: Callable[[], Writer]) -> Writer:
        """The writer, which hashes if it can."""
        writer = make()
        try:  # an interrupt must not leave the file that the writer has begun
            if self._digests is not None and isinstance(writer, HashingWriter):
                writer.start_hash()
                self._writer = writer
        except BaseException:
            writer.abort()
            raise
        return writer

    def ready(self) -> None:
        """To be called when all is written, before the output gets its name: no older receipt may lie beside it then.

        Errors: SourceError when a file of the source cannot be hashed; WriteError.
        """
        if self._digests is not None:
            self._digests.result()
            self._commit = checkout_commit()
        for output in self._facts.outputs:
            for path in output.target.paths:
                old = receipt_path(path)
                try:
                    old.unlink(missing_ok=True)
                except OSError as error:
                    raise WriteError(f"{old}, of an older output, cannot be removed: {error.strerror}") from error

    def finish(self) -> Path | None:
        """Copy the sidecars and write the receipt, which comes last; returns its path, None when there is none."""
        copy_sidecars(self._facts.sidecars)
        if self._digests is None:
            return None
        path = self._facts.receipt_path
        write_receipt(path, self._receipt(self._digests.result()))
        return path

    def _receipt(self, digests: Mapping[str, FileDigest]) -> Receipt:
        from hf2q.convert.bounds import chunk_bounds

        facts = self._facts
        made = provenance_of(
            source_name(facts.prepared),
            facts.outputs[0].plan,
            facts.recipe,
            facts.settings,
            facts.imatrix.sha256 if facts.imatrix else "",
        )
        return Receipt(
            schema_version=3,
            source=_source(facts.prepared, digests),
            converter=Converter(name="hf2q", version=hf2q.__version__, commit=self._commit),
            recipe=RecipeUse(
                name=made.recipe,
                via=made.via,
                options=made.settings,
                imatrix=facts.imatrix if made.imatrix else None,
                digest=made.recipe_digest,
            ),
            plans=tuple(_plan(output) for output in facts.outputs),
            outputs=tuple(self._file(output, path) for output in facts.outputs for path in output.target.paths),
            sidecars=tuple(
                CopiedFile(name=one.target.name, size=one.size, sha256=one.sha256) for one in facts.sidecars
            ),
            bounds=chunk_bounds(
                facts.everything.plan, facts.everything.importance, facts.threads, facts.everything.held
            ),
            started=self._started,
            finished=_now(),
        )

    def _file(self, output: Output, path: Path) -> OutputFile:
        sha256 = self._writer.hashes().get(str(path), "") if self._writer is not None else ""
        size = path.stat().st_size
        if not sha256:
            sha256 = digest_file(path).sha256
        return OutputFile(name=readable(path.name), role=output.role, size=size, sha256=sha256)


@contextmanager
def recording(facts: Facts, *, receipt: bool) -> Iterator[Recording]:
    """Start to hash the source, if a receipt is wanted; whatever is not done at the end is given up."""
    if not receipt:
        yield Recording(facts, None)
        return
    path = facts.receipt_path
    if path.is_dir():
        raise WriteError(f"{path} is a directory, where the receipt would be", hint="--no-receipt leaves it out")
    prepared = facts.prepared
    origin = prepared.origin
    known = {file.path: FileDigest(size=file.size, sha256=file.sha256) for file in origin.files} if origin else {}
    with BackgroundDigests(selected_files(prepared.folder, prepared.files, origin), known) as digests:
        yield Recording(facts, digests)


def identify_imatrix(importance: Importance) -> ImatrixIdentity:
    """Path, size and digest of an importance matrix, and what it says about itself."""
    found, imatrix = digest_file(importance.path), importance.imatrix
    return ImatrixIdentity(
        path=readable(importance.path),
        size=found.size,
        sha256=found.sha256,
        datasets=tuple(map(readable, imatrix.datasets)),
        chunks=imatrix.chunk_count,
        n_ctx=imatrix.chunk_size,
    )


def _source(prepared: Prepared, digests: Mapping[str, FileDigest]) -> SourceIdentity:
    origin, named = prepared.origin, source_name(prepared)
    files: Sequence[SourceFile]
    files = [SourceFile(path=path, size=found.size, sha256=found.sha256) for path, found in digests.items()]
    return SourceIdentity(
        kind=named.kind,  # type: ignore[arg-type]  # one of three texts, checked when it is read
        name=named.name if origin is None else origin.repo,
        canonical=None if origin is None else origin.canonical,
        revision=named.revision or None,
        endpoint=None if origin is None else origin.endpoint,
        files=tuple(files),
    )


def _plan(output: Output) -> OutputPlan:
    types: dict[str, TypeTotal] = {}
    for tensor in output.plan.tensors:
        before = types.get(tensor.qtype, TypeTotal(tensors=0, parameters=0, nbytes=0))
        types[tensor.qtype] = TypeTotal(
            tensors=before.tensors + 1,
            parameters=before.parameters + tensor.parameters,
            nbytes=before.nbytes + tensor.nbytes,
        )
    reasons: dict[str, int] = {}
    for _, reason in output.plan.ignored:
        reasons[reason] = reasons.get(reason, 0) + 1
    return OutputPlan(role=output.role, arch=output.plan.arch, recipe=output.plan.recipe, types=types, left_out=reasons)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
