"""Open a GGUF file that nobody vouches for: everything is checked against what the file holds before it is used.

Opening costs one pass over the header and imports no numpy. Checks follow llama.cpp ggml/src/gguf.cpp
(`gguf_init_from_reader`); what it refuses is refused here. Stricter than it: text must be UTF-8, truth values 0 or 1,
tensor names neither empty nor with zero bytes, keys below 2^16 and headers below 2^28 bytes, alignments from 8 to
2^20; and the data of all tensors must be there with the padding after the last, so that no cut goes unnoticed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

from hf2q.errors import FormatError
from hf2q.formats.files import open_regular, refuse_lfs_pointer
from hf2q.formats.gguf.cursor import Cursor
from hf2q.formats.gguf.layout import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    FIXED_HEADER,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_HEADER_BYTES,
    MIN_ALIGNMENT,
    MIN_KEY_RECORD,
    MIN_TENSOR_RECORD,
    READABLE_VERSIONS,
    valid_alignment,
)
from hf2q.formats.gguf.metadata import Metadata, read_metadata
from hf2q.formats.gguf.table import GgufTensor, place, read_table
from hf2q.types import MetadataField, ValueType

if TYPE_CHECKING:
    from hf2q.types import Bytes


def open_gguf(path: str | os.PathLike[str], available: int | None = None) -> GgufFile:
    """Map the file and read its header.

    available  how many bytes at its beginning hold what they should, when the rest is a hole; default all

    Returns: the open file, to be used in a `with` statement. As with every mapped file, the system ends the process if
    somebody cuts the file short while it is open.
    Errors: MissingFileError when there is none, SourceError when it cannot be opened, FormatError for anything wrong
    in it, naming the file, the place, what was found and what was expected; IncompleteHeaderError when the header goes
    on after what is `available`.
    """
    name = os.fspath(path)
    descriptor, size = open_regular(name)
    try:
        if size < FIXED_HEADER:
            start = os.pread(descriptor, size, 0)
            if not start.startswith(MAGIC[:size]) or not size:
                raise _not_gguf(start, name)
            raise FormatError(f"{name}: the file has {size} bytes, fewer than the {FIXED_HEADER} of a GGUF header")
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    try:
        return GgufFile(name, mapped, size, available)
    except BaseException:
        mapped.close()
        raise


class GgufFile:
    """An open GGUF file. Reading is thread-safe.

    path, size      as opened; size in bytes
    version         2 or 3
    alignment       of tensors, in bytes
    data_offset     where the data section begins, in bytes
    data_end        where it ends, padding included; a file may go on after it
    metadata        keys in file order; arrays are tuples, read when asked for
    tensors         in file order, by name
    """

    def __init__(self, path: str, mapped: mmap.mmap, size: int, available: int | None = None) -> None:
        """Read the header of `mapped`; use `open_gguf`."""
        self.path = path
        self.size = size
        self._map: mmap.mmap | None = mapped
        cursor = Cursor(mapped, size, path, available)
        self.version = _read_version(cursor)
        n_tensors = _read_count(cursor, "tensors", MIN_TENSOR_RECORD)
        n_keys = _read_count(cursor, "keys", MIN_KEY_RECORD)
        self._metadata = read_metadata(cursor, n_keys)
        self.alignment = _alignment(self._metadata, path)
        self.data_offset, self.data_end, placed = place(cursor, read_table(cursor, n_tensors), self.alignment)
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(placed)

    @property
    def metadata(self) -> Metadata:
        """The keys and values."""
        return self._metadata

    @property
    def keys_in_order(self) -> tuple[str, ...]:
        """All keys, as the file has them."""
        return tuple(self._metadata)

    @property
    def arch(self) -> str:
        """The text of ``general.architecture``. Errors: FormatError when it is absent, no text or empty."""
        value = self._metadata.get("general.architecture")
        if not isinstance(value, str) or not value:
            found = "absent" if value is None else f"{value!r}"
            raise FormatError(f"{self.path}: general.architecture is {found}, expected the name of an architecture")
        return value

    def field(self, key: str) -> MetadataField:
        """Key, types and value. Errors: FormatError when the key is absent."""
        self._require(key)
        return self._metadata.field(key)

    def array_length(self, key: str) -> int:
        """Number of elements of an array, without reading it. Errors: FormatError when absent or not an array."""
        self._require(key)
        return self._metadata.length_of(key)

    def array(self, key: str, element: ValueType) -> tuple[Any, ...]:
        """The elements of an array. Errors: FormatError when absent, no array, or of another element type."""
        self._require(key)
        found = self._metadata.element_of(key)
        if found is not element:
            kind = self._metadata.type_of(key).name if found is None else f"an array of {found.name}"
            raise FormatError(f"{self.path}: key {key!r} is {kind}, expected an array of {element.name}")
        values: tuple[Any, ...] = self._metadata[key]
        return values

    def rows(self, name: str) -> Bytes:
        """The data of a tensor: a read-only view, uint8 (rows, bytes per row), of the mapped file; nothing is copied.

        The view stays valid after the file is closed. Errors: FormatError when there is no such tensor.
        """
        import numpy as np

        tensor = self.tensors.get(name)
        if tensor is None:
            raise FormatError(f"{self.path}: there is no tensor {name!r} among its {len(self.tensors)}")
        if self._map is None:
            raise ValueError(f"{self.path} is closed")
        # Through a memoryview, which keeps the map open for as long as the array lives; numpy alone does not.
        view = memoryview(self._map)[tensor.offset : tensor.offset + tensor.nbytes]
        return np.asarray(view).reshape(tensor.rows, tensor.row_bytes)

    @property
    def mapped(self) -> bool:
        """Whether pages of what `rows` gives may be let go of, to be read again when somebody looks."""
        return self._map is not None and hasattr(mmap, "MADV_DONTNEED")

    def release(self, name: str, first: int = 0, last: int | None = None) -> None:
        """Let go of the memory that reading rows of a tensor took; they can be read again."""
        tensor = self.tensors[name]
        last = tensor.rows if last is None else last
        begin = tensor.offset + first * tensor.row_bytes
        begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE  # pages shared with neighbours stay
        length = (tensor.offset + last * tensor.row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if self._map is not None and length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, begin, length)

    def release_all(self) -> None:
        """As `release`, of the whole file, its header too."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmap the file, now or, while views of it are in use, when the last of them is gone."""
        if self._map is not None:
            with contextlib.suppress(BufferError):  # views hold the map; it goes with them
                self._map.close()
            self._map = None

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require(self, key: str) -> None:
        if key not in self._metadata:
            raise FormatError(f"{self.path}: there is no key {key!r}")


def _not_gguf(start: bytes, path: str) -> FormatError:
    refuse_lfs_pointer(start, path)
    return FormatError(f"{path} is not a GGUF file: it begins with {start[:4]!r}, expected {MAGIC!r}")


def _read_version(cursor: Cursor) -> int:
    start = bytes(cursor.buffer[:FIXED_HEADER])
    if not start.startswith(MAGIC):
        raise _not_gguf(start, cursor.path)
    cursor.position = len(MAGIC)
    version = cursor.u32("the version")
    if version in READABLE_VERSIONS:
        return version
    at = len(MAGIC)
    if version == 1:
        raise cursor.error("GGUF version 1 is not supported, expected 2 or 3", at=at, hint="convert the model again")
    if version & 0xFFFF == 0:
        raise cursor.error("the file is big-endian, expected little-endian", at=at, hint="convert its byte order first")
    raise cursor.error(f"GGUF version {version} is not supported, expected 2 or 3", at=at)


def _read_count(cursor: Cursor, what: str, smallest: int) -> int:
    start = cursor.position
    count = cursor.i64(f"the number of {what}")
    left = min(cursor.size, MAX_HEADER_BYTES) - cursor.position
    if not 0 <= count <= left // smallest:
        raise cursor.error(
            f"the number of {what} is {count}, but the {left} bytes that follow hold at most {left // smallest}",
            at=start,
        )
    return count


def _alignment(metadata: Metadata, path: str) -> int:
    if ALIGNMENT_KEY not in metadata:
        return DEFAULT_ALIGNMENT
    kind = metadata.type_of(ALIGNMENT_KEY)
    if kind is not ValueType.UINT32:
        raise FormatError(f"{path}: {ALIGNMENT_KEY} is of type {kind.name}, expected UINT32")
    value = int(metadata[ALIGNMENT_KEY])
    if not valid_alignment(value):
        raise FormatError(
            f"{path}: {ALIGNMENT_KEY} is {value}, expected a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"
        )
    return value
