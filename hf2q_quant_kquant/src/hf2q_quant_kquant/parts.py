"""Parts that several kernels share: rounding by the reference's trick, and the scales of the legacy types.

The bytes of every encoder here equal those of ggml's reference as compiled for x86-64 without fused multiply-add
(llama.cpp, ggml/src/ggml-quants.c), which fixes the order of every float operation. The reference works on one block
at a time; the kernels put one block into each lane, so that order is kept in every lane.
"""

from __future__ import annotations

from hf2q.simd import F32, I32, WIDE, Vector, inline, where

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
def span_over(x: Vector, top: int) -> tuple[Vector, Vector, Vector, Vector]:
    """Of blocks of 32: the scale d (highest minus lowest, over `top`), its inverse, the lowest, a mask for the codes.

    Inverse and mask are zero where either scale or inverse overflows, as in `largest_over`.
    """
    low = high = x[0]
    for k in range(1, 32):
        low, high = min(low, x[k]), max(high, x[k])
    d = (high - low) / top
    inverse = where(d == 0, 0, 1 / d)
    usable = (inverse <= LARGEST) & (d <= LARGEST)
    return d, where(usable, inverse, 0), low, where(usable, I(255), 0)
