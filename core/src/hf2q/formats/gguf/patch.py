"""Another GGUF header before the same tensor data: what ``hf2q gguf-patch`` does.

The keys change; names, shapes, types and bytes of the tensors do not. A header that this module would not reproduce
byte for byte from what it read is refused, so nothing can get lost on the way.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hf2q.errors import FormatError, UsageError, WriteError
from hf2q.formats.files import changed, open_regular, read_bytes, read_exactly
from hf2q.formats.gguf.encode import encode_header
from hf2q.formats.gguf.layout import ALIGNMENT_KEY, MAGIC
from hf2q.formats.gguf.reader import GgufFile, open_gguf
from hf2q.formats.gguf.shards import SPLIT_KEYS
from hf2q.formats.temporary import create_unfinished
from hf2q.types import MetadataField, Record, TensorPlan

CHUNK = 8 << 20
"""Bytes of tensor data copied at a time."""


class Patched(Record, frozen=True, kw_only=True):
    """What was written. `data_sha256` is that of everything behind the header, the same in both files."""

    path: str
    nbytes: int
    data_bytes: int
    data_sha256: str


def patched_fields(
    file: GgufFile, changes: Mapping[str, MetadataField], removed: Sequence[str]
) -> tuple[MetadataField, ...]:
    """The keys of `file` with `changes` in their places, new ones at the end, and without `removed`.

    Errors: UsageError for a key that is to be removed but is absent or also set, and for keys on which the layout of
    the file depends.
    """
    fixed = {ALIGNMENT_KEY: "where tensors lie depends on it", "general.architecture": "every other key depends on it"}
    fixed |= dict.fromkeys(SPLIT_KEYS, "it says which tensors are in which file")
    for key in (*changes, *removed):
        if key in fixed and not (key in changes and key in file.metadata and changes[key] == file.metadata.field(key)):
            raise UsageError(f"{key} is not changed here: {fixed[key]}", hint="convert again to change it")
    for key in removed:
        if key in changes:
            raise UsageError(f"{key} is to be set and removed at once")
        if key not in file.metadata:
            raise UsageError(f"{file.path} has no key {key!r} to remove", hint=f"hf2q info {file.path} lists its keys")
    kept = [changes.get(key) or file.metadata.field(key) for key in file.metadata if key not in set(removed)]
    return (*kept, *(field for key, field in changes.items() if key not in file.metadata))


def write_patched(
    file: GgufFile,
    fields: Sequence[MetadataField],
    output: str,
    *,
    check: Callable[[GgufFile], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Patched:
    """Write `fields` and the tensor data of `file` to `output`, which may be the file itself.

    The data is copied verbatim and read back: its SHA-256 before and after is compared while the file still has its
    hidden name. `check` is given the file that has been written, before it gets its name, and raises what speaks
    against it. `progress` gets (bytes copied, bytes in all).

    Errors: FormatError for a header that cannot be reproduced; WriteError for everything about the disk.
    """
    header = _header(file, fields)
    descriptor, size = open_regular(file.path)
    try:
        if size != file.size:
            raise changed(file.path)
        start = file.data_offset if file.tensors else file.size
        if _header(file, [file.metadata.field(key) for key in file.metadata]) != read_bytes(
            descriptor, start, 0, file.path
        ):
            raise FormatError(
                f"{file.path}: its header has something between or after its keys that would be lost",
                hint="only files whose header is written without gaps can be patched",
            )
        return _write(descriptor, file, start, header, output, check, progress)
    finally:
        os.close(descriptor)


def _header(file: GgufFile, fields: Sequence[MetadataField]) -> bytes:
    tensors = [
        TensorPlan(
            name=tensor.name,
            shape=tensor.shape,
            qtype=tensor.qtype,
            via=tensor.qtype,
            reason="as it was",
            nbytes=tensor.nbytes,
            offset=tensor.offset - file.data_offset,
            inputs=(),
        )
        for tensor in file.tensors.values()
    ]
    made = encode_header(fields, tensors)
    # versions 2 and 3 differ in nothing but this number
    return made[: len(MAGIC)] + file.version.to_bytes(4, "little") + made[len(MAGIC) + 4 :]


def _write(
    source: int,
    file: GgufFile,
    start: int,
    header: bytes,
    output: str,
    check: Callable[[GgufFile], None] | None,
    progress: Callable[[int, int], None] | None,
) -> Patched:
    try:
        target = Path(output).resolve()
        descriptor, temporary = create_unfinished(target)
    except (OSError, RuntimeError, ValueError) as error:
        raise WriteError(f"{output} cannot be written: {error}") from error
    total = file.size - start
    try:
        _put(descriptor, memoryview(header))
        copied = hashlib.sha256()
        buffer = memoryview(bytearray(min(CHUNK, max(1, total))))
        for done in range(0, total, len(buffer)):
            part = buffer[: min(len(buffer), total - done)]
            read_exactly(source, part, start + done, file.path)
            copied.update(part)
            _put(descriptor, part)
            if progress is not None:
                progress(done + len(part), total)
        os.fsync(descriptor)
        written = _digest(descriptor, len(header), total, str(temporary))
        if written != copied.hexdigest():
            raise WriteError(
                f"{output} was not written: what the disk gives back is not what was put there",
                hint="the disk is failing; choose another one",
            )
        with open_gguf(temporary) as made:
            made.path = output
            if check is not None:
                check(made)
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise WriteError(f"{output} cannot be written: {error.strerror}") from error
        raise
    finally:
        os.close(descriptor)
    return Patched(path=output, nbytes=len(header) + total, data_bytes=total, data_sha256=written)


def _digest(descriptor: int, start: int, count: int, path: str) -> str:
    found = hashlib.sha256()
    buffer = memoryview(bytearray(min(CHUNK, max(1, count))))
    for done in range(0, count, len(buffer)):
        part = buffer[: min(len(buffer), count - done)]
        read_exactly(descriptor, part, start + done, path)
        found.update(part)
    return found.hexdigest()


def _put(descriptor: int, view: memoryview) -> None:
    done = 0
    while done < len(view):
        done += os.write(descriptor, view[done:])
