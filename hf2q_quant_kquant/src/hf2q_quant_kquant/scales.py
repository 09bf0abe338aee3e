"""The search behind every type with a scale only: weights of a block are fitted by scale * code, codes of both signs.

Used by Q3_K and Q6_K, and by Q4_0 and Q5_0 with importance. One block per lane; x, w and wx are scratches of n vectors,
w holding the weight of each value in the error. Source: make_qx_quants of ggml-quants.c (rmse_type 1).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import Vector, as_float, as_int, inline, where
from hf2q_quant_kquant.parts import MAGIC, TINY, F, larger


def grids(top: int) -> npt.NDArray[np.float32]:
    """Numerators of the trial scales: -(nmax + 0.1 * step), rounded as the reference rounds them. A table, as the
    scalar arithmetic at the head of so short a loop costs 12 %."""
    return -(np.float32(0.1) * np.array([i for i in range(-9, 10) if i], np.float32) + np.float32(top))


@inline
def unsigned_code(v: Vector, top: int) -> Vector:
    """Nearest integer clamped to -top..top - 1, plus top. Beyond +-2**22 it wraps first, as the reference."""
    return min(max(as_int(v + MAGIC) & 0x7FFFFF, 0x400000 - top), 0x400000 + (top - 1)) - (0x400000 - top)


@inline
def level(v: Vector, top: int, tame: bool) -> Vector:
    """Nearest integer clamped to -top..top - 1, as a float; `tame` promises that no lane wraps."""
    if tame:
        return as_float(min(max(as_int(v + MAGIC), 0x4B400000 - top), 0x4B400000 + (top - 1))) - MAGIC
    return as_float(unsigned_code(v, top) + (0x4B400000 - top)) - MAGIC


@inline
def fit(x: Vector, w: Vector, wx: Vector, n: int, top: int, tame: bool, inverse: Vector) -> tuple[Vector, Vector]:
    """The sums of a weighted fit of the codes of one grid."""
    lx = ll = F(0)
    for k in range(n):
        c = level(inverse * x[k], top, tame)
        lx += wx[k] * c
        ll += w[k] * c * c
    return lx, ll


@inline
def fit_scale(
    x: Vector, w: Vector, wx: Vector, n: int, top: int, tame: bool, trials: npt.NDArray[np.float32]
) -> tuple[Vector, Vector, Vector]:
    """Best scale per lane; the codes -top..top - 1 that go with it are x * inverse + offset. wx is working memory.

    `tame` promises that x is finite: no product then comes near 2**22, where codes would wrap.
    """
    size = most = F(0)
    for k in range(n):
        size, most = larger(size, most, x[k])
        wx[k] = w[k] * x[k]
    inverse = -top / most
    lx, ll = fit(x, w, wx, n, top, tame, inverse)
    scale = where(ll == 0, 0, lx / ll)
    best = scale * lx
    for k in range(trials.size):
        trial = trials[k] / most
        lx, ll = fit(x, w, wx, n, top, tame, trial)
        better = (ll > 0) & (lx * lx > best * ll)
        scale = where(better, lx / ll, scale)
        best, inverse = where(better, scale * lx, best), where(better, trial, inverse)
    empty = size < TINY
    # an empty block has code 0 in unsigned terms, -top here
    return where(empty, 0, scale), where(empty, 0, inverse), where(empty, F(-top), 0)
