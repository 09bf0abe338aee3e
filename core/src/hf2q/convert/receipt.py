"""The receipt beside an output: what it was made from, how, and what came out, with the SHA-256 of every file.

Canonical JSON: sorted keys, no white space but the line end at the end of the file, no floats. The same conversion
writes the same receipt but for `started` and `finished`. Reading validates all of it. Described for users in
docs/reference/receipt.md, whose tables are checked against these structs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import msgspec

from hf2q.convert.provenance import Settings, canonical
from hf2q.errors import FormatError
from hf2q.formats.strict_json import parse
from hf2q.formats.tokenizer.files import read_bounded
from hf2q.formats.whole import write_whole

SCHEMA_VERSION = 3
SUFFIX = ".receipt.json"
MAX_RECEIPT_BYTES = 64 << 20

Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Time = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all parts of a receipt: immutable, and nothing unknown is let through."""


class SourceFile(Part, frozen=True, kw_only=True):
    """One file of the source: `path` in it, with ``/``; size in bytes; SHA-256 of the local bytes."""

    path: Text
    size: Count
    sha256: Sha256

    def __post_init__(self) -> None:
        _check_relative(self.path)


class SourceIdentity(Part, frozen=True, kw_only=True):
    """What was converted.

    kind       ``local`` for a directory, ``hub`` for a repository, ``gguf`` for a GGUF file
    name       the directory's or the file's own name; the id of the repository, as it was asked for
    canonical  the id that the hub answered with, else null
    revision   the exact commit of the repository, else null
    endpoint   the address of the hub, else null
    files      every file that was selected, sorted by path
    """

    kind: Literal["local", "hub", "gguf"]
    name: Text
    canonical: Text | None
    revision: Text | None
    endpoint: Text | None
    files: tuple[SourceFile, ...]

    def __post_init__(self) -> None:
        if (self.kind == "hub") != (self.revision is not None and self.canonical is not None):
            raise ValueError("a source of kind hub has a canonical name and a revision, another has neither")
        _check_names(file.path for file in self.files)


class Converter(Part, frozen=True, kw_only=True):
    """The program. `commit` is the Git commit of the checkout it ran from, with ``-dirty`` when changed; else null."""

    name: Text
    version: Text
    commit: Text | None


class ImatrixIdentity(Part, frozen=True, kw_only=True):
    """The importance matrix: `path` as it was given, size in bytes, SHA-256.

    datasets  what it says it was computed from;  chunks, n_ctx  how many chunks of how many tokens, 0 when not said
    """

    path: Text
    size: Count
    sha256: Sha256
    datasets: tuple[str, ...] = ()
    chunks: Count = 0
    n_ctx: Count = 0


class RecipeUse(Part, frozen=True, kw_only=True):
    """How values became bytes.

    name     what was asked for (``q4_k_m``, ``auto``);  via  the intermediate type, "" for a GGUF source
    options  what was asked for besides; what has its default is left out
    imatrix  null without one
    digest   SHA-256 over the canonical JSON of the four, as in the key ``hf2q.recipe_digest``
    """

    name: Text
    via: str
    options: Settings
    imatrix: ImatrixIdentity | None
    digest: Sha256


class TypeTotal(Part, frozen=True, kw_only=True):
    """Of all tensors of one type: how many, how many weights, how many bytes."""

    tensors: Count
    parameters: Count
    nbytes: Count


class OutputFile(Part, frozen=True, kw_only=True):
    """One file that was written, beside the receipt. `role` is ``model`` (one, or each shard) or ``projector``."""

    name: Text
    role: Literal["model", "projector"]
    size: Count
    sha256: Sha256

    def __post_init__(self) -> None:
        _check_name(self.name)


class OutputPlan(Part, frozen=True, kw_only=True):
    """What is in the files of one role.

    arch, recipe  their architecture, and the recipe that ``auto`` came to;  types  totals by type of tensor
    left_out      tensors of the source that are in no file, by the reason
    """

    role: Literal["model", "projector"]
    arch: Text
    recipe: Text
    types: dict[str, TypeTotal]
    left_out: dict[str, Count]


class Sidecar(Part, frozen=True, kw_only=True):
    """One file that was copied beside the output, byte for byte."""

    name: Text
    size: Count
    sha256: Sha256

    def __post_init__(self) -> None:
        _check_name(self.name)


class Bounds(Part, frozen=True, kw_only=True):
    """Most bytes of tensor data that the conversion holds at a time, from the plan and the pipeline's constants.

    threads           workers
    pieces            pieces of tensors under way at a time, at most
    piece_bytes       float32 values of the largest piece
    encoded_bytes     bytes of the largest encoded piece
    importance_bytes  float32 importance of the largest tensor that is encoded with it
    reading_bytes     what a worker holds to give the next rows of a tensor whose rows are columns of the source
    digest_bytes      what is read at a time to hash the source
    peak_bytes        threads * (6 * piece_bytes + reading_bytes) + pieces * encoded_bytes + importance_bytes +
                      digest_bytes; a worker holds up to 6 arrays of the size of a piece (`hf2q.convert.bounds.COPIES`)

    Not in it: the program itself, header and vocabulary, and orders of rows that a transform needs.
    """

    threads: Count
    pieces: Count
    piece_bytes: Count
    encoded_bytes: Count
    importance_bytes: Count
    reading_bytes: Count
    digest_bytes: Count
    peak_bytes: Count


class Receipt(Part, frozen=True, kw_only=True):
    """All of it. `started` and `finished` are in UTC, and the only fields that another run changes."""

    schema_version: Literal[3]
    source: SourceIdentity
    converter: Converter
    recipe: RecipeUse
    plans: tuple[OutputPlan, ...]
    outputs: tuple[OutputFile, ...]
    sidecars: tuple[Sidecar, ...]
    bounds: Bounds
    started: Time
    finished: Time

    def __post_init__(self) -> None:
        if not self.outputs:
            raise ValueError("there is no output")
        _check_names([*(file.name for file in self.outputs), *(file.name for file in self.sidecars)])


def receipt_path(output: Path) -> Path:
    """Where the receipt of `output`, the first of several files, lies."""
    return output.with_name(f"{output.name}{SUFFIX}")


def encode_receipt(receipt: Receipt) -> bytes:
    """Its canonical form."""
    return canonical(receipt) + b"\n"


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Write it in one step, replacing an older one. Errors: WriteError."""
    write_whole(str(path), [encode_receipt(receipt)])


def read_receipt(path: Path) -> Receipt | None:
    """The receipt in a file, None when there is no such file.

    Errors: FormatError naming the field for anything that is not as it is written here; SourceError.
    """
    data = read_bounded(path, MAX_RECEIPT_BYTES)
    if data is None:
        return None
    raw = parse(data, str(path))
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise FormatError(
            f"{path}: schema_version is {version!r}, expected {SCHEMA_VERSION}",
            hint="move the file away to go without a receipt",
        )
    try:
        return msgspec.convert(raw, Receipt)
    except msgspec.ValidationError as error:
        raise FormatError(f"{path} is no receipt: {error}", hint="move the file away to go without a receipt") from None


def _check_name(name: str) -> None:
    if name in (".", "..") or "/" in name or "\0" in name or os.sep in name:
        raise ValueError(f"{name!r} is no plain file name")


def _check_relative(path: str) -> None:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path or str(pure) != path:
        raise ValueError(f"{path!r} is no relative path")


def _check_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{name!r} occurs twice")
        seen.add(name)
