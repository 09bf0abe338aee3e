"""The manifest of locked references: what a model file answered, beside the digest of that file.

JSON. `files` names the model's files by size and SHA-256; each of `references` is a prompt with its greedy answer.
An answer is either the file's own, and must come again byte for byte, or, with a `floor`, another program's to the same
file: then so many bytes of it must come. Such a number is a property of the file, the prompt and that program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from hf2q.errors import FormatError, MissingFileError, SourceError, UsageError
from hf2q.formats.digest import digest_file
from hf2q.formats.whole import write_whole
from hf2q.types import Record

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
HINT = "hf2q parity FILE --manifest NEW.json --update makes one"


class ModelFile(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of the model; the name is for people, size and digest decide."""

    name: str
    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Sha256


class Reference(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A prompt and its answer.

    text    the answer's text; None before the first --update
    tokens  ids of the answer, also the one that ended it; None leaves them unchecked
    floor   bytes of `text`, UTF-8, that must come; None for all, and no more
    source  for people: the program and build that a text with a floor is from
    logits_sha256  of the logits after the prompt, float32 little-endian; None leaves them unchecked
    """

    name: Annotated[str, msgspec.Meta(min_length=1)]
    prompt: Annotated[str, msgspec.Meta(min_length=1)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    text: str | None = None
    tokens: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] | None = None
    floor: Annotated[int, msgspec.Meta(ge=1)] | None = None
    source: str = ""
    logits_sha256: Sha256 | None = None


class Manifest(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. `schema` is its version."""

    references: tuple[Reference, ...]
    files: tuple[ModelFile, ...] = ()
    schema: Literal["hf2q-parity/1"] = "hf2q-parity/1"


def read_manifest(path: Path) -> Manifest:
    """Errors: MissingFileError, SourceError; FormatError for anything that is not understood or cannot hold."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no manifest {path}", hint=HINT) from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    try:
        found = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{path} is no manifest: {error}", hint=HINT) from error
    _check(path, found)
    return found


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write it whole or not at all. Errors: WriteError."""
    write_whole(str(path), [msgspec.json.format(msgspec.json.encode(manifest), indent=2), b"\n"])


def identify(files: Iterable[str]) -> tuple[ModelFile, ...]:
    """Sizes and digests of a model's files; reads each once. Errors: as `digest_file`."""
    found = []
    for path in files:
        digest = digest_file(path)
        found.append(ModelFile(name=Path(path).name, size=digest.size, sha256=digest.sha256))
    return tuple(found)


def same_files(a: Sequence[ModelFile], b: Sequence[ModelFile]) -> bool:
    """Whether two lists are of the same bytes, whatever the names."""
    return [(file.size, file.sha256) for file in a] == [(file.size, file.sha256) for file in b]


def check_files(path: Path, manifest: Manifest, files: Sequence[ModelFile]) -> None:
    """Refuse a manifest of another model file. Errors: UsageError with both digests."""
    if same_files(manifest.files, files):
        return

    def told(some: Sequence[ModelFile]) -> str:
        return ", ".join(f"{file.name} ({file.sha256[:16]}…)" for file in some) or "no file"

    raise UsageError(
        f"{path} holds the references of {told(manifest.files)}; this is {told(files)}",
        hint="--update records this file's answers in it, --manifest names another one",
    )


def _check(path: Path, manifest: Manifest) -> None:
    if not manifest.references:
        raise FormatError(f"{path} has no references, so nothing could fail", hint="add prompts, or remove it")
    names = [reference.name for reference in manifest.references]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FormatError(f"{path} has two references of the name {twice[0]!r}")
    for one in manifest.references:
        where = f"{path}, reference {one.name!r}"
        if one.floor is None:
            continue
        if one.text is None or one.tokens is not None or one.logits_sha256 is not None:
            raise FormatError(f"{where}: a floor is for another program's text; it needs text, and no tokens or logits")
        length = len(one.text.encode())
        if one.floor > length:
            raise FormatError(f"{where}: the floor is {one.floor} bytes, but the text has {length}")
