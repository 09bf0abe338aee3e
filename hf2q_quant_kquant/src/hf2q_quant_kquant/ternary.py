"""What TQ1_0 and TQ2_0 have in common: every weight of a block becomes -d, 0 or d, d being the largest magnitude.

Nothing is searched, so a block lies across the lanes as it lies in memory. Source: quantize_row_tq1_0_ref and
quantize_row_tq2_0_ref of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import F32, I32, Vector, highest, inline, load, to_half, where
from hf2q_quant_kquant.parts import LARGEST

ROW, CODE = F32(32), I32(32)
FOUR, FOUR_BITS = F32(4), I32(4)


@inline
def scale_of(x: npt.NDArray[np.float32], at: int, head: Vector) -> float:
    """The largest magnitude of the 256 weights at element `at`; its float16 goes to every lane of head[0]."""
    size = ROW(0)
    for k in range(0, 256, 32):
        size = max(size, abs(load(ROW, x, at + k)))
    d: float = highest(size)
    head[0] = to_half(FOUR(d))
    return d


@inline
def inverse_of(d: Vector) -> Vector:
    """1 / d; 0 for an empty block, and where it overflows: the reference's conversion to an integer then gives 0."""
    return where((d > 0) & (1 / d <= LARGEST), 1 / d, 0)


@inline
def trits(v: Vector, one: Vector) -> Vector:
    """0, 1 or 2 for what rounds, halves away from zero, to -1, 0 or 1; `one` is 1 in int32 lanes."""
    return where(v >= 0.5, one + 1, where(v <= -0.5, 0, one))
