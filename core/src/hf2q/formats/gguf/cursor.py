"""A position in a GGUF header that never passes the end: every read is checked first."""

from __future__ import annotations

import mmap
import struct
from typing import TypeAlias

from hf2q.errors import FormatError
from hf2q.formats.gguf.layout import MAX_HEADER_BYTES

Buffer: TypeAlias = bytes | memoryview | mmap.mmap

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")


class IncompleteHeaderError(FormatError):
    """Only the beginning of the file is here, and its header goes on after that."""


class Cursor:
    """Reads little-endian values from `buffer`, of which `size` bytes exist, the first `available` of them here.

    `what` in each method names the thing being read, for the message of the FormatError that any of them may raise.
    """

    __slots__ = ("available", "buffer", "end", "path", "position", "size")

    def __init__(self, buffer: Buffer, size: int, path: str, available: int | None = None) -> None:
        self.buffer = buffer
        self.path = path
        self.size = size
        self.available = size if available is None else min(available, size)
        self.end = min(self.available, MAX_HEADER_BYTES)
        self.position = 0

    def error(self, message: str, *, at: int | None = None, hint: str | None = None) -> FormatError:
        """An error that names the file and the byte, by default the current one."""
        return FormatError(f"{self.path}, byte {self.position if at is None else at}: {message}", hint=hint)

    def need(self, count: int, what: str) -> None:
        """Check that `count` more bytes are there."""
        left = self.end - self.position
        if count <= left:
            return
        if self.end == self.available and count <= self.size - self.position:
            raise IncompleteHeaderError(f"{self.path}: {what} lies beyond the {self.available} bytes that are here")
        if self.end < self.size and count <= self.size - self.position:
            raise self.error(f"{what} makes the header larger than {MAX_HEADER_BYTES} bytes, which is the limit")
        raise self.error(f"{what} needs {count} bytes, but the file has only {self.size - self.position} left")

    def u32(self, what: str) -> int:
        """An unsigned 32-bit integer."""
        return self._scalar(_U32, what)

    def i32(self, what: str) -> int:
        """A signed 32-bit integer."""
        return self._scalar(_I32, what)

    def u64(self, what: str) -> int:
        """An unsigned 64-bit integer."""
        return self._scalar(_U64, what)

    def i64(self, what: str) -> int:
        """A signed 64-bit integer."""
        return self._scalar(_I64, what)

    def string(self, what: str, limit: int = MAX_HEADER_BYTES) -> str:
        """A string of at most `limit` bytes, which must be UTF-8."""
        start = self.position
        length = self.u64(f"the length of {what}")
        if length > limit:
            raise self.error(f"{what} has {length} bytes, expected at most {limit}", at=start)
        self.need(length, what)
        raw = self.buffer[self.position : self.position + length]
        try:
            text = str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {error.reason}", at=self.position + error.start) from None
        self.position += length
        return text

    def _scalar(self, form: struct.Struct, what: str) -> int:
        self.need(form.size, what)
        (value,) = form.unpack_from(self.buffer, self.position)
        self.position += form.size
        return int(value)
