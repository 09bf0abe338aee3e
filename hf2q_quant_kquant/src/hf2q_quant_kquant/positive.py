"""The scale of scales: how Q2_K, Q4_K and Q5_K turn the scales, or minimums, of sub-blocks into integers and one float.

These numbers are not negative. Without importance the largest gets the largest integer (`by_maximum`); with it each
number has a weight, and a search finds the float (`fit_positive`). One super-block per lane; x and w are scratches of n
vectors, the integers go to the scratch `codes` (I) as bytes, as in the reference: a negative number, which rounding can
make of a scale, becomes a large one.
Source: quantize_row_q2_K_ref, quantize_row_q4_K_ref and make_qp_quants of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import Vector, as_int, every, inline, where
from hf2q_quant_kquant.parts import MAGIC, TINY, F, I


def grids(top: int) -> npt.NDArray[np.float32]:
    """Numerators of the trial scales: nmax + 0.1 * step, rounded as the reference rounds them."""
    return np.float32(0.1) * np.array([i for i in range(-4, 5) if i], np.float32) + np.float32(top)


@inline
def nearest(v: Vector) -> Vector:
    """Nearest integer, ties to even; beyond +-2**22 it wraps, as the reference."""
    return (as_int(v + MAGIC) & 0x7FFFFF) - 0x400000


@inline
def by_maximum(x: Vector, codes: Vector, n: int, top: int) -> Vector:
    """The scale that gives the largest number the code `top`."""
    most = F(0)
    for k in range(n):
        most = max(most, x[k])
    inverse = where(most > 0, top / most, 0)
    for k in range(n):
        codes[k] = nearest(inverse * x[k]) & 255
    return most / top


@inline
def fit_positive(x: Vector, w: Vector, codes: Vector, n: int, top: int, trials: npt.NDArray[np.float32]) -> Vector:
    """The scale whose multiples come nearest to all numbers, by the weight of each; codes are at most `top`."""
    most = F(0)
    for k in range(n):
        most = where(most > x[k], most, x[k])
    inverse = top / most
    scale = 1 / inverse
    best = F(0)
    for k in range(n):
        d = x[k] - scale * F(nearest(inverse * x[k]) & 255)
        best += w[k] * d * d
    for t in range(trials.size):
        trial = trials[t] / most
        scale = 1 / trial
        e = F(0)
        for k in range(n):
            d = x[k] - scale * F(min(nearest(trial * x[k]), top))
            e += w[k] * d * d
        better = e < best
        best, inverse = where(better, e, best), where(better, trial, inverse)
    lx = ll = F(0)
    for k in range(n):
        c = min(nearest(inverse * x[k]), top)
        codes[k] = c & 255
        lx += w[k] * x[k] * F(c)
        ll += w[k] * F(c) * F(c)
    lx, ll = improve(x, w, codes, n, top, lx, ll)
    empty = most < TINY
    for k in range(n):
        codes[k] = where(empty, 0, codes[k])
    return where(empty | ~(ll > 0), 0, lx / ll)


@inline
def improve(x: Vector, w: Vector, codes: Vector, n: int, top: int, lx: Vector, ll: Vector) -> tuple[Vector, Vector]:
    """Up to five sweeps, each of which moves one code after the other to where the fit of the others wants it."""
    for _ in range(5):
        changed = I(0)
        for k in range(n):
            c = F(codes[k])
            p, r = lx - w[k] * x[k] * c, ll - w[k] * c * c
            moved = min(nearest(x[k] * r / p), top)
            new = F(moved)
            pn, rn = p + w[k] * x[k] * new, r + w[k] * new * new
            better = (p > 0) & (r > 0) & (moved != codes[k]) & (pn * pn * ll > lx * lx * rn)
            codes[k] = where(better, moved & 255, codes[k])
            lx, ll = where(better, pn, lx), where(better, rn, ll)
            changed |= I(better)
        if every(changed == 0):
            break
    return lx, ll
