"""Parts that several kernels share: rounding by the reference's trick, the largest magnitude with its sign, and the
six-bit scales and minimums of Q4_K.

The bytes of every encoder here equal those of ggml's reference as compiled for x86-64 without fused multiply-add
(llama.cpp, ggml/src/ggml-quants.c), which fixes the order of every float operation. The reference works on one block
at a time; the kernels put one block into each lane, so that order is kept in every lane.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.errors import EncodeError
from hf2q.simd import F32, I32, WIDE, Vector, as_int, inline, load_u8, where

F, I = F32(WIDE), I32(WIDE)  # noqa: E741  (beside F, no reader takes I for a one)
"""What search passes compute with: one block per lane."""

MAGIC = 12582912.0
"""1.5 * 2**23: adding it rounds to the nearest integer, ties to even, found in the low 23 bits with 2**22 added
(`nearest_int` of ggml-quants.c)."""

LARGEST = 3.4028234663852886e38
"""The largest finite float32."""

TINY = 1e-15
"""A block whose largest magnitude is below this is empty (GROUP_MAX_EPS of ggml-quants.c)."""


@inline
def larger(size: Vector, most: Vector, x: Vector) -> tuple[Vector, Vector]:
    """The largest magnitude so far and the value that had it first, after looking at x."""
    more = abs(x) > size
    return where(more, abs(x), size), where(more, x, most)


@inline
def largest_over(x: Vector, divisor: int) -> tuple[Vector, Vector, Vector]:
    """Of blocks of 32: the scale d (the value of largest magnitude, over `divisor`), its inverse, a mask for the codes.

    Both are zero where the inverse overflows: the reference's conversion to a byte then gives 0, whatever the weight.
    """
    size = most = F(0)
    for k in range(32):
        size, most = larger(size, most, x[k])
    d = most / divisor
    inverse = where(d == 0, 0, 1 / d)
    usable = abs(inverse) <= LARGEST
    return d, where(usable, inverse, 0), where(usable, I(255), 0)


@inline
def six_bits(v: Vector) -> Vector:
    """Nearest integer, wrapped to a byte as the reference stores it, at most 63."""
    return min((as_int(v + MAGIC) - 0x4B400000) & 255, 63)


# The 12 bytes of six-bit numbers, s = scales, m = minimums of sub-blocks 0 to 7 (get_scale_min_k4 of ggml-quants.c):
#   byte j, j < 4:      s[j] in bits 0-5, the high two bits of s[j + 4] in bits 6-7
#   byte 4 + j:         m[j] in bits 0-5, the high two bits of m[j + 4] in bits 6-7
#   byte 8 + j:         the low four bits of s[j + 4] in bits 0-3, those of m[j + 4] in bits 4-7
QUAD = I32(4)


@inline
def unpack_six_bits(data: npt.NDArray[np.uint8], at: int) -> tuple[Vector, Vector, Vector, Vector]:
    """Scales 0 to 3, scales 4 to 7, minimums 0 to 3, minimums 4 to 7 from the 12 bytes at `at`."""
    a, b, c = load_u8(QUAD, data, at), load_u8(QUAD, data, at + 4), load_u8(QUAD, data, at + 8)
    return a & 63, c & 15 | a >> 6 << 4, b & 63, c >> 4 | b >> 6 << 4


def no_importance(qtype: str, importance: npt.NDArray[np.float32] | None) -> None:
    """Errors: EncodeError if importance was given to an encoder that has no weighted search."""
    if importance is not None:
        raise EncodeError(
            f"{qtype}: the encoder has no importance-weighted search",
            hint="encode without an importance matrix",
        )
