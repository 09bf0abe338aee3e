"""The search behind every type with a scale and a minimum: weights of a block are fitted by scale * code + low.

Used by Q2_K, Q4_K and Q5_K, and by Q4_1 and Q5_1 with importance. One block per lane; x, w and q are scratches of n
vectors, w holding the weight of each value in the error. Source: make_qkx2_quants and make_qkx3_quants of
ggml-quants.c, which differ only in where the weights come from.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hf2q.simd import Vector, as_float, as_int, every, inline, where
from hf2q_quant_kquant.parts import MAGIC, F

Found: TypeAlias = tuple[Vector, Vector, Vector, Vector]
"""Scratches of one vector for each sub-block: scale, minimum = -low, inverse and origin as `fit_line` gives them."""


def grids(first: float, step: float, steps: int, top: int) -> npt.NDArray[np.float32]:
    """Numerators of the trial scales: rmin + rdelta * k + nmax for k = 0 to `steps`, rounded as the reference does."""
    return np.float32(first) + np.float32(step) * np.arange(steps + 1, dtype=np.float32) + np.float32(top)


@inline
def code(v: Vector, top: int) -> Vector:
    """Nearest integer clamped to 0..top, plus 0x400000. Beyond +-2**22 it wraps before the clamp, as the reference."""
    return min(max(as_int(v + MAGIC) & 0x7FFFFF, 0x400000), 0x400000 + top)


@inline
def level(v: Vector, top: int, tame: bool) -> Vector:
    """The code as a float; `tame` promises that no lane wraps."""
    if tame:
        return as_float(min(max(as_int(v + MAGIC), 0x4B400000), 0x4B400000 + top)) - MAGIC
    return as_float(code(v, top) | 0x4B000000) - MAGIC


@inline
def assign(
    x: Vector, w: Vector, q: Vector, n: int, top: int, low: Vector, inverse: Vector, tame: bool
) -> tuple[Vector, Vector, Vector]:
    """Codes q of the blocks for one grid, and the sums that a weighted line fit through them needs."""
    sl = sll = slx = F(0)
    for k in range(n):
        c = level(inverse * (x[k] - low), top, tame)
        q[k] = c
        wc = w[k] * c
        sl += wc
        sll += wc * c
        slx += wc * x[k]
    return sl, sll, slx


@inline
def error(x: Vector, w: Vector, q: Vector, n: int, absolute: bool, scale: Vector, low: Vector) -> Vector:
    """Weighted error of the codes q, absolute or squared."""
    e = F(0)
    for k in range(n):
        d = scale * q[k] + low - x[k]
        e += w[k] * (abs(d) if absolute else d * d)
    return e


@inline
def fit_line(
    x: Vector, w: Vector, q: Vector, n: int, top: int, absolute: bool, trials: npt.NDArray[np.float32]
) -> tuple[Vector, Vector, Vector, Vector, Vector]:
    """Best (scale, low) per lane, the (inverse, origin) whose codes belong to it, and the sum of w.

    The codes are the nearest integers to inverse * (x - origin), clamped to 0..top. low is at most 0.
    """
    bottom = highest = x[0]
    weight, moment = w[0], w[0] * x[0]
    for k in range(1, n):
        bottom, highest = min(bottom, x[k]), max(highest, x[k])
        weight += w[k]
        moment += w[k] * x[k]
    low = origin = where(bottom > 0, F(0), bottom)
    inverse = top / (highest - low)
    scale = 1 / inverse
    assign(x, w, q, n, top, low, inverse, False)
    best = error(x, w, q, n, absolute, scale, low)
    for k in range(trials.size):
        span = highest - low
        trial = trials[k] / span
        flat = span == 0
        # with all products below 2**22 nothing wraps, and the clamp is three instructions shorter
        if every((abs(trial * span) <= 4194303) & (abs(trial * (bottom - low)) <= 4194303) | flat):
            sl, sll, slx = assign(x, w, q, n, top, low, where(flat, F(0), trial), True)
        else:
            sl, sll, slx = assign(x, w, q, n, top, low, trial, False)
        det = weight * sll - sl * sl
        s, m = (weight * slx - moment * sl) / det, (sll * moment - sl * slx) / det
        s, m = where(m > 0, slx / sll, s), where(m > 0, F(0), m)
        e = error(x, w, q, n, absolute, s, m)
        better = (det > 0) & (e < best)
        best, scale = where(better, e, best), where(better, s, scale)
        inverse, origin = where(better, trial, inverse), where(better, low, origin)
        low = where(better, m, low)  # the reference's next trial starts from this minimum
    return scale, low, inverse, origin, weight
