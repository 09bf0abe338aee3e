"""How a GGUF file is laid out: numbers, limits, and the arithmetic of offsets. Bottom of `hf2q.formats.gguf`.

::

    "GGUF" | version u32 | tensors i64 | keys i64          all little-endian
    keys × ( key str | type i32 | value )                  array value: element type i32 | length u64 | elements
    tensors × ( name str | n_dims u32 | sizes i64, innermost first | type i32 | offset u64 )
    zeros up to a multiple of the alignment
    tensor data, each tensor followed by zeros up to a multiple of the alignment

A string is its length in bytes (u64) and its UTF-8 text. Source: ggml/docs/gguf.md and llama.cpp ggml/src/gguf.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from hf2q.types import ValueType

MAGIC = b"GGUF"
VERSION = 3
READABLE_VERSIONS = (2, 3)
"""Versions 2 and 3 are the same when little-endian; version 1 had 32-bit lengths."""

FIXED_HEADER = 24
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
MIN_ALIGNMENT = 8
MAX_ALIGNMENT = 1 << 20
"""gguf.md asks for a multiple of 8. The ceiling is ours: beyond a page of any machine, padding only wastes disk."""

MAX_DIMS = 4
MAX_NAME_BYTES = 63
"""GGML_MAX_DIMS, and GGML_MAX_NAME less the closing zero (ggml/include/ggml.h)."""

MAX_KEY_BYTES = 65535
"""From gguf.md."""

MAX_HEADER_BYTES = 1 << 28
"""Our ceiling for everything before the data. Vocabularies of 250,000 tokens need about 12 MB; a limit keeps the time
that a hostile file can cost in bounds."""

MIN_KEY_RECORD = 8 + 1 + 4 + 1
MIN_TENSOR_RECORD = 8 + 1 + 4 + 4 + 8
"""Smallest possible record of a key and of a tensor: what a count is checked against."""

FORMATS: Mapping[ValueType, str] = MappingProxyType(
    {
        ValueType.UINT8: "B",
        ValueType.INT8: "b",
        ValueType.UINT16: "H",
        ValueType.INT16: "h",
        ValueType.UINT32: "I",
        ValueType.INT32: "i",
        ValueType.FLOAT32: "f",
        ValueType.BOOL: "?",
        ValueType.UINT64: "Q",
        ValueType.INT64: "q",
        ValueType.FLOAT64: "d",
    }
)
"""`struct` codes of the types of fixed size."""

WIDTHS: Mapping[ValueType, int] = MappingProxyType(
    {
        ValueType.UINT8: 1,
        ValueType.INT8: 1,
        ValueType.UINT16: 2,
        ValueType.INT16: 2,
        ValueType.UINT32: 4,
        ValueType.INT32: 4,
        ValueType.FLOAT32: 4,
        ValueType.BOOL: 1,
        ValueType.UINT64: 8,
        ValueType.INT64: 8,
        ValueType.FLOAT64: 8,
    }
)
"""Their sizes in bytes."""


def padded(size: int, alignment: int) -> int:
    """`size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


def valid_alignment(value: int) -> bool:
    """Whether `value` is a power of two that we read and write."""
    return MIN_ALIGNMENT <= value <= MAX_ALIGNMENT and value & (value - 1) == 0


def plan_offsets(sizes: Iterable[int], alignment: int = DEFAULT_ALIGNMENT) -> tuple[int, ...]:
    """Offset of each tensor from the beginning of the data section, for tensors of `sizes` bytes in file order."""
    offsets = []
    position = 0
    for size in sizes:
        offsets.append(position)
        position += padded(size, alignment)
    return tuple(offsets)
