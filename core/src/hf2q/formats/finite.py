"""Are the numbers of a stored tensor finite? Asked of every tensor while a model loads; only views, nothing is copied.

A block's codes cannot be wrong, but its scale may be infinite or NaN, and with it every weight of the block. So of a
quantized tensor only the scales are looked at: a few bytes of each block. Of a float tensor all values are.

Source of the places: llama.cpp, ggml/src/ggml-common.h (the block structs); of what is refused: ggml/src/ggml-quants.c,
`ggml_validate_row_data`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hf2q.formats.ggml_types import GGML_TYPES
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.types import Bytes

HALF_SCALES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "F16": (0,),
        "Q4_0": (0,),
        "Q4_1": (0, 2),
        "Q5_0": (0,),
        "Q5_1": (0, 2),
        "Q8_0": (0,),
        "Q2_K": (80, 82),
        "Q3_K": (108,),
        "Q4_K": (0, 2),
        "Q5_K": (0, 2),
        "Q6_K": (208,),
        "IQ1_S": (0,),
        "IQ2_XXS": (0,),
        "IQ2_XS": (0,),
        "IQ2_S": (0,),
        "IQ3_XXS": (0,),
        "IQ3_S": (0,),
        "IQ4_NL": (0,),
        "IQ4_XS": (0,),
        "TQ1_0": (52,),
        "TQ2_0": (64,),
        "Q1_0": (0,),
        "Q2_0": (0,),
    }
)
"""Where a block has its float16 scales and minimums, in bytes."""

E8M0_SCALES: Mapping[str, int] = MappingProxyType({"MXFP4": 0})
"""Where a block has its power of two; 255 is NaN."""

_E8M0_NAN = 255
_FLOATS: Mapping[str, tuple[str, int]] = MappingProxyType({"F32": ("u4", 0x7F80_0000), "BF16": ("u2", 0x7F80)})
"""Unsigned type as wide as the float, and the bits of infinity."""

PIECE = 1 << 18
"""Bytes looked at together, so that the second look finds them in the processor's cache."""

KNOWN = frozenset({*HALF_SCALES, *E8M0_SCALES, *_FLOATS})
"""Types that `first_bad` can look at."""


class Bad(Record, frozen=True, kw_only=True):
    """Where a number that is not finite was found: `value` in `row`, at the block, or of a float the column, `at`."""

    row: int
    at: int
    value: float


def first_bad(rows: Bytes, qtype: str) -> Bad | None:
    """The first scale, or of a float type the first value, that is infinite or NaN.

    rows is uint8 (rows, bytes per row), of a type in `KNOWN`; it may be mapped from a file, and is read once.
    """
    size = GGML_TYPES[qtype].type_size
    blocks = rows.reshape(-1, size) if rows.size else rows.reshape(0, size)
    per_piece = max(1, PIECE // size)
    for start in range(0, len(blocks), per_piece):
        piece = blocks[start : start + per_piece]
        found = _e8m0(piece, E8M0_SCALES[qtype]) if qtype in E8M0_SCALES else _floats(piece, qtype)
        if found is not None:
            per_row = rows.shape[1] // size
            index, value = start + found[0], found[1]
            return Bad(row=index // per_row, at=index % per_row, value=value)
    return None


def _e8m0(blocks: Bytes, at: int) -> tuple[int, float] | None:
    scales = blocks[:, at]
    return None if int(scales.max()) < _E8M0_NAN else (int((scales == _E8M0_NAN).argmax()), float("nan"))


def _floats(blocks: Bytes, qtype: str) -> tuple[int, float] | None:
    """Index and value of the first block with a float that is not finite."""
    kind, infinity = _FLOATS.get(qtype, ("u2", 0x7C00))
    found = []
    for at in HALF_SCALES.get(qtype, (0,)):
        bits = np.ascontiguousarray(blocks[:, at : at + int(kind[1])].view(f"<{kind}")[:, 0])
        # no temporary: read as signed numbers positive floats are the largest, as unsigned ones the negative floats
        sign = 1 << (8 * bits.itemsize - 1)
        if int(bits.view(f"<i{kind[1]}").max()) >= infinity or int(bits.max()) >= sign | infinity:
            index = int((bits & infinity == infinity).argmax())
            found.append((index, _value(int(bits[index]), qtype)))
    return min(found, default=None)


def _value(bits: int, qtype: str) -> float:
    if qtype in _FLOATS:
        return float(np.uint32(bits << (16 if qtype == "BF16" else 0)).view(np.float32))
    return float(np.uint16(bits).view(np.float16))
