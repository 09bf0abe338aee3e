"""The ``.dat`` format of importance matrices: means only, times the number of chunks. All little-endian.

::

    entries i32
    entries × ( length i32 | name | chunks i32 | values i32 | values × f32 )      value = mean square × chunks
    chunks i32 | length i32 | dataset                                             absent in the oldest files

What it cannot say: counts by expert (experts never used are stored as ones), tokens, more than one dataset. Source:
llama.cpp, tools/imatrix/imatrix.cpp, `save_imatrix_legacy`; common/imatrix-loader.cpp, `common_imatrix_load_legacy`.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections.abc import Iterator

import numpy as np

from hf2q.errors import FormatError, WriteError
from hf2q.formats.files import open_regular, refuse_lfs_pointer
from hf2q.formats.gguf.layout import MAX_NAME_BYTES
from hf2q.formats.imatrix.record import Entry, Imatrix, check_sums, sorted_entries
from hf2q.formats.imatrix.weights import mean_squares

log = logging.getLogger(__name__)

MIN_ENTRY = 4 + 1 + 4 + 4 + 4
"""Smallest possible entry: what the number of entries is checked against."""

MAX_INT = (1 << 31) - 1


def read_legacy(path: str) -> Imatrix:
    """Read a file. Sums are read-only views of the mapped file; `chunk_size` is 0, since counts are in chunks.

    Errors: FormatError naming the file and the byte for anything wrong, SourceError when it cannot be opened.
    """
    descriptor, size = open_regular(path)
    try:
        start = os.pread(descriptor, 64, 0)
        refuse_lfs_pointer(start, path)
        if size < 4 + MIN_ENTRY:
            raise _foreign(path, start)
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    reader = _Reader(mapped, size, path)
    count = reader.i32("the number of entries")
    if not 1 <= count <= (size - 4) // MIN_ENTRY:
        raise _foreign(path, start)
    entries: dict[str, Entry] = {}
    for index in range(count):
        at = reader.position
        name, entry = _read_entry(reader, index)
        if name in entries:
            raise reader.error(f"entry {name!r} occurs twice", at)
        entries[name] = entry
    chunk_count = reader.i32("the number of chunks", least=0) if reader.left else 0
    datasets = []
    if reader.left:
        length = reader.i32("the length of the dataset's name", least=0)
        # a path on somebody's machine, in whatever encoding that machine has
        text = reader.take(length, "the dataset's name").decode("utf-8", "backslashreplace")
        datasets = [text] if text else []
    if reader.left:
        raise reader.error(f"{reader.left} bytes follow after the end", reader.position)
    return Imatrix(entries=sorted_entries(entries), datasets=tuple(datasets), chunk_count=chunk_count)


def encode_legacy(imatrix: Imatrix) -> Iterator[bytes]:
    """The file in parts. Entries without any data are left out, and said so in the log.

    Errors: WriteError for what the format has no room for.
    """
    entries = {}
    for name, entry in sorted_entries(imatrix.entries).items():
        if entry.covered:
            entries[name] = entry
        else:
            log.warning("%s has no data and is left out", name)
    if not entries:
        raise WriteError("the importance matrix has no entry with data, and a legacy file holds at least one")
    yield _packed(len(entries))
    for name, entry in entries.items():
        chunks = -(-int(entry.counts.max()) // (imatrix.chunk_size or 1))
        raw = name.encode()
        yield _packed(len(raw)) + raw + _packed(chunks) + _packed(entry.sums.size)
        # counts in chunks come from such a file, whose values are times chunks already
        as_is = imatrix.chunk_size == 0 and len(entry.counts) == 1
        values = entry.sums if as_is else mean_squares(entry) * np.float32(chunks)
        yield values.astype("<f4").tobytes()
    dataset = imatrix.datasets[-1].encode() if imatrix.datasets else b""
    yield _packed(imatrix.chunk_count) + _packed(len(dataset)) + dataset


class _Reader:
    """A position in the file that never passes the end."""

    def __init__(self, mapped: mmap.mmap, size: int, path: str) -> None:
        self._map, self._size, self.path = mapped, size, path
        self.position = 0

    @property
    def left(self) -> int:
        return self._size - self.position

    def error(self, message: str, at: int) -> FormatError:
        return FormatError(f"{self.path}, byte {at}: {message}")

    def skip(self, count: int, what: str) -> int:
        """Move past `count` bytes, which must be there; returns where they begin."""
        if count > self.left:
            raise self.error(f"{what} needs {count} bytes, but the file has only {self.left} left", self.position)
        self.position += count
        return self.position - count

    def take(self, count: int, what: str) -> bytes:
        start = self.skip(count, what)
        return self._map[start : start + count]

    def i32(self, what: str, least: int = -MAX_INT - 1) -> int:
        at = self.position
        value: int = struct.unpack("<i", self.take(4, what))[0]
        if value < least:
            raise self.error(f"{what} is {value}, expected at least {least}", at)
        return value

    def floats(self, count: int, what: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return np.frombuffer(self._map, "<f4", count, self.skip(4 * count, what))


def _read_entry(reader: _Reader, index: int) -> tuple[str, Entry]:
    at = reader.position
    length = reader.i32(f"the length of name {index}", least=1)
    if length > MAX_NAME_BYTES:
        raise reader.error(f"name {index} has {length} bytes, expected at most {MAX_NAME_BYTES}", at)
    at = reader.position
    raw = reader.take(length, f"name {index}")
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise reader.error(f"name {index} is not UTF-8: {error.reason}", at + error.start) from None
    if "\0" in name:
        raise reader.error(f"name {index} is {name!r}, expected text without zero bytes", at)
    chunks = reader.i32(f"the number of chunks of {name}", least=0)
    count = reader.i32(f"the number of values of {name}", least=1)
    values = reader.floats(count, f"the values of {name}")
    check_sums(values, reader.path, name)
    # values of no chunks at all are taken as they are
    return name, Entry(sums=values.reshape(1, -1), counts=np.array([max(chunks, 1)], np.int64))


def _packed(number: int) -> bytes:
    if number > MAX_INT:
        raise WriteError(f"the importance matrix holds the number {number}; a legacy file has room up to {MAX_INT}")
    return struct.pack("<i", number)


def _foreign(path: str, start: bytes) -> FormatError:
    return FormatError(
        f"{path} is no importance matrix: it begins with {start[:4]!r}, expected b'GGUF' or the number of entries "
        "of a legacy file",
        hint="give a file that llama-imatrix or `hf2q imatrix` wrote",
    )
