"""The storage types of GGUF tensors: name, number, block size and bytes per block.

At the bottom of `hf2q.formats`; imports no numpy. Source of the numbers: llama.cpp, ggml/include/ggml.h
(`enum ggml_type`), ggml/src/ggml.c (`type_traits`) and ggml/src/ggml-common.h (the block structs).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hf2q.errors import FormatError
from hf2q.types import Record


class GgmlType(Record, frozen=True, kw_only=True):
    """One storage type: `block_size` weights take `type_size` bytes."""

    name: str
    id: int
    block_size: int
    type_size: int


_TABLE = (
    ("F32", 0, 1, 4),
    ("F16", 1, 1, 2),
    ("Q4_0", 2, 32, 18),
    ("Q4_1", 3, 32, 20),
    ("Q5_0", 6, 32, 22),
    ("Q5_1", 7, 32, 24),
    ("Q8_0", 8, 32, 34),
    ("Q8_1", 9, 32, 36),
    ("Q2_K", 10, 256, 84),
    ("Q3_K", 11, 256, 110),
    ("Q4_K", 12, 256, 144),
    ("Q5_K", 13, 256, 176),
    ("Q6_K", 14, 256, 210),
    ("Q8_K", 15, 256, 292),
    ("IQ2_XXS", 16, 256, 66),
    ("IQ2_XS", 17, 256, 74),
    ("IQ3_XXS", 18, 256, 98),
    ("IQ1_S", 19, 256, 50),
    ("IQ4_NL", 20, 32, 18),
    ("IQ3_S", 21, 256, 110),
    ("IQ2_S", 22, 256, 82),
    ("IQ4_XS", 23, 256, 136),
    ("I8", 24, 1, 1),
    ("I16", 25, 1, 2),
    ("I32", 26, 1, 4),
    ("I64", 27, 1, 8),
    ("F64", 28, 1, 8),
    ("IQ1_M", 29, 256, 56),
    ("BF16", 30, 1, 2),
    ("TQ1_0", 34, 256, 54),
    ("TQ2_0", 35, 256, 66),
    ("MXFP4", 39, 32, 17),
    ("NVFP4", 40, 64, 36),
    ("Q1_0", 41, 128, 18),
    ("Q2_0", 42, 64, 18),
)

GGML_TYPES: Mapping[str, GgmlType] = MappingProxyType(
    {name: GgmlType(name=name, id=number, block_size=block, type_size=size) for name, number, block, size in _TABLE}
)
"""All types that a GGUF file may hold today, by name."""

_BY_ID: Mapping[int, GgmlType] = MappingProxyType({known.id: known for known in GGML_TYPES.values()})

_REMOVED: Mapping[int, str] = MappingProxyType(
    {
        4: "Q4_2",
        5: "Q4_3",
        31: "Q4_0_4_4",
        32: "Q4_0_4_8",
        33: "Q4_0_8_8",
        36: "IQ4_NL_4_4",
        37: "IQ4_NL_4_8",
        38: "IQ4_NL_8_8",
    }
)


def ggml_type(number: int) -> GgmlType:
    """The type with this number. Errors: FormatError when no such type exists or exists no longer."""
    found = _BY_ID.get(number)
    if found is not None:
        return found
    if number in _REMOVED:
        raise FormatError(
            f"tensor type {number} ({_REMOVED[number]}) was removed from GGUF",
            hint="convert the original checkpoint again",
        )
    raise FormatError(f"tensor type {number} is unknown, expected one of 0 to {max(_BY_ID)}")


def row_bytes(qtype: str, columns: int) -> int:
    """Bytes of one row of `columns` weights stored as `qtype`.

    Errors: FormatError for an unknown name, or when `columns` is not a whole number of blocks.
    """
    found = GGML_TYPES.get(qtype)
    if found is None:
        raise FormatError(f"tensor type {qtype!r} is unknown, expected one of {', '.join(GGML_TYPES)}")
    if columns < 0 or columns % found.block_size:
        raise FormatError(f"a row of {columns} values is not a whole number of {qtype} blocks of {found.block_size}")
    return columns // found.block_size * found.type_size
