"""The keys of a GGUF header: scalars are read at once, arrays are located and read when asked for.

A vocabulary of 250,000 tokens is thus only walked, length by length, when a file is opened. Between `cursor` and
`reader`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hf2q.errors import FormatError
from hf2q.formats.gguf.cursor import Buffer, Cursor
from hf2q.formats.gguf.layout import FORMATS, MAX_KEY_BYTES, WIDTHS
from hf2q.formats.gguf.strings import join_strings, read_strings, skip_strings
from hf2q.types import MetadataField, ValueType

_U64 = struct.Struct("<Q")
_LABEL = 100  # characters of a key that messages show


class ArrayAt(NamedTuple):
    """Where an array lies in the file: `length` elements of type `element` in bytes `start` to `stop`."""

    element: ValueType
    length: int
    start: int
    stop: int


class Metadata(Mapping[str, Any]):
    """Read-only keys and values in file order. Arrays come as tuples, made anew each time: a vocabulary is large.

    `entries` holds (type, value) of scalars and (ARRAY, ArrayAt) of arrays; `buffer` is the file, which must stay
    open for as long as arrays are asked for.
    """

    def __init__(self, entries: dict[str, tuple[ValueType, Any]], buffer: Buffer, path: str) -> None:
        self._entries = entries
        self._buffer = buffer
        self._path = path

    def __getitem__(self, key: str) -> Any:
        kind, value = self._entries[key]
        return self.head(key, value.length) if kind is ValueType.ARRAY else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def type_of(self, key: str) -> ValueType:
        """The type of a value. KeyError when the key is absent, as for any mapping."""
        return self._entries[key][0]

    def element_of(self, key: str) -> ValueType | None:
        """The type of an array's elements, None for scalars."""
        kind, value = self._entries[key]
        return value.element if kind is ValueType.ARRAY else None

    def length_of(self, key: str) -> int:
        """Number of elements of an array, without reading it. Errors: FormatError when it is not an array."""
        return self._located(key).length

    def field(self, key: str) -> MetadataField:
        """Key, types and value together; reads an array."""
        return MetadataField(key=key, type=self.type_of(key), value=self[key], element=self.element_of(key))

    def head(self, key: str, count: int) -> tuple[Any, ...]:
        """The first `count` elements of an array, fewer when it is shorter; only these are read.

        Errors: FormatError for text that is not UTF-8; ValueError when the file is closed.
        """
        array = self._open(key)
        count = min(count, array.length)
        if array.element is ValueType.STRING:
            return read_strings(self._buffer, array.start, array.stop, count, (self._path, key))
        return struct.unpack_from(f"<{count}{FORMATS[array.element]}", self._buffer, array.start)

    def joined(self, key: str, separator: bytes) -> bytes:
        """The strings of an array as they are in the file, `separator`, one byte, between them; none becomes a str.

        Whether they are UTF-8, or hold `separator`, is for the caller to find out.
        Errors: FormatError for another key; ValueError when the file is closed.
        """
        array = self._open(key)
        if array.element is not ValueType.STRING:
            raise FormatError(f"{self._path}: key {key!r} is an array of {array.element.name}, expected one of strings")
        return join_strings(self._buffer, array.start, array.stop, array.length, separator, (self._path, key))

    def _open(self, key: str) -> ArrayAt:
        if getattr(self._buffer, "closed", False):
            raise ValueError(f"{self._path} is closed: the array {key!r} cannot be read any more")
        return self._located(key)

    def _located(self, key: str) -> ArrayAt:
        kind, value = self._entries[key]
        if not isinstance(value, ArrayAt):
            raise FormatError(f"{self._path}: key {key!r} is of type {kind.name}, expected an array")
        return value


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    """Read `count` keys at the cursor. Errors: FormatError for everything that gguf.cpp refuses, and for bad UTF-8."""
    entries: dict[str, tuple[ValueType, Any]] = {}
    for index in range(count):
        start = cursor.position
        key = cursor.string(f"key {index}", MAX_KEY_BYTES)
        if not key:
            raise cursor.error(f"key {index} is empty", at=start)
        label = repr(key[:_LABEL])
        if key in entries:
            raise cursor.error(f"key {label} occurs twice", at=start)
        kind = _read_type(cursor, f"the type of key {label}")
        entries[key] = (
            kind,
            _locate_array(cursor, label) if kind is ValueType.ARRAY else _read_scalar(cursor, label, kind),
        )
    return Metadata(entries, cursor.buffer, cursor.path)


def _read_type(cursor: Cursor, what: str) -> ValueType:
    start = cursor.position
    number = cursor.i32(what)
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.error(f"{what} is {number}, expected 0 to {max(ValueType)}", at=start) from None


def _read_scalar(cursor: Cursor, label: str, kind: ValueType) -> Any:
    if kind is ValueType.STRING:
        return cursor.string(f"the value of {label}")
    cursor.need(WIDTHS[kind], f"the value of {label}")
    start = cursor.position
    cursor.position += WIDTHS[kind]
    if kind is ValueType.BOOL:
        _check_bools(cursor, label, start, cursor.position)
    (value,) = struct.unpack_from("<" + FORMATS[kind], cursor.buffer, start)
    return value


def _locate_array(cursor: Cursor, label: str) -> ArrayAt:
    at = cursor.position
    element = _read_type(cursor, f"the element type of {label}")
    if element is ValueType.ARRAY:
        raise cursor.error(f"{label} is an array of arrays, which no GGUF reader accepts", at=at)
    length = cursor.u64(f"the length of {label}")
    width = WIDTHS.get(element, _U64.size)
    cursor.need(length * width, f"the array {label} of {length} elements")
    start = cursor.position
    if element is ValueType.STRING:
        skip_strings(cursor, label, length)
    else:
        cursor.position += length * width
        if element is ValueType.BOOL:
            _check_bools(cursor, label, start, cursor.position)
    return ArrayAt(element, length, start, cursor.position)


def _check_bools(cursor: Cursor, label: str, start: int, stop: int) -> None:
    raw = bytes(cursor.buffer[start:stop])
    if raw.translate(None, b"\0\1"):
        index = next(i for i, byte in enumerate(raw) if byte > 1)
        raise cursor.error(f"a truth value of {label} is {raw[index]}, expected 0 or 1", at=start + index)
