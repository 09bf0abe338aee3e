"""Files of a checkpoint that programs look for beside a model, copied there byte for byte."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hf2q.errors import FormatError, SourceError, UsageError, WriteError
from hf2q.formats.digest import CHUNK, digest_file
from hf2q.formats.files import open_regular
from hf2q.formats.whole import write_whole
from hf2q.types import Record

SIDECARS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


class Sidecar(Record, frozen=True, kw_only=True):
    """One file to copy: from `source` to `target`. `there`: `target` is the same file, or holds the same bytes."""

    source: Path
    target: Path
    size: int
    sha256: str
    there: bool


def plan_sidecars(folder: Path | None, beside: Path, outputs: Iterable[Path], *, force: bool) -> tuple[Sidecar, ...]:
    """Which files of the checkpoint `folder` go into the folder `beside`; none for a source that is a file.

    Errors: UsageError for a different file that is there already, unless `force`, and for an output of that name;
    WriteError for something there that is no file; SourceError.
    """
    if folder is None:
        return ()
    taken = {output.name for output in outputs}
    planned = []
    for name in SIDECARS:
        source, target = folder / name, beside / name
        if not source.exists():
            continue
        if name in taken:
            raise UsageError(f"{target} is both the output and a sidecar", hint="choose another output with -o")
        planned.append(_planned(source, target, force=force))
    return tuple(planned)


def _planned(source: Path, target: Path, *, force: bool) -> Sidecar:
    digest = digest_file(source)
    try:
        exists = target.exists() or target.is_symlink()
        same = exists and target.exists() and target.samefile(source)
    except OSError as error:
        raise WriteError(f"{target} cannot be written: {error.strerror}") from error
    if exists and not same:
        if target.is_dir():
            raise WriteError(f"{target} is a directory, expected a file or nothing")
        same = target.is_file() and digest_file(target) == digest
        if not same and not force:
            raise UsageError(
                f"{target} exists, and differs from {source}, which would be copied there",
                hint="--no-sidecars leaves such copies out, --force replaces the file, -o chooses another folder",
            )
    return Sidecar(source=source, target=target, size=digest.size, sha256=digest.sha256, there=same)


def copy_sidecars(sidecars: Sequence[Sidecar]) -> None:
    """Copy what is not there, each file in one step.

    Errors: WriteError; FormatError when a source has changed since it was planned.
    """
    for sidecar in sidecars:
        if not sidecar.there:
            if sidecar.target.is_symlink():  # the link is replaced, not what it leads to
                sidecar.target.unlink()
            write_whole(str(sidecar.target), _content(sidecar))


def _content(sidecar: Sidecar) -> Iterator[bytes]:
    """The bytes in pieces; raises at their end when they are not what was planned, so that nothing gets the name."""
    found = hashlib.sha256()
    descriptor, _ = open_regular(str(sidecar.source))
    try:
        while data := os.read(descriptor, CHUNK):
            found.update(data)
            yield data
    except OSError as error:
        raise SourceError(f"{sidecar.source} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if found.hexdigest() != sidecar.sha256:
        raise FormatError(f"{sidecar.source} changed during the conversion", hint="start again")
