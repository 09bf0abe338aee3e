"""The sixteen numbers that the codes of IQ4_NL and IQ4_XS name, and the search for the scale of a block.

The numbers lie denser around zero; a weight is scale * number. Byte k of a block's 16 holds the code of weight k in its
low and that of weight k + 16 in its high half.
Source: kvalues_iq4nl of ggml-common.h; best_index_int8 and quantize_row_iq4_nl_impl of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import F32, I32, Vector, inline, load, load_u8, store, store_u8, where
from hf2q_quant_kquant.parts import TINY, F, larger

ROW, CODE = F32(16), I32(16)

N = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The numbers, by code."""

GRIDS = np.array([N[0] + step for step in range(-7, 8)], np.float32)
"""Numerators of the trial scales."""


@inline
def nearest_number(v: Vector) -> Vector:
    """The number nearest to v, as a float.

    The reference bisects and gives a tie to the upper number. That is a comparison with the middle of each pair, since
    both distances are exact there. NaN compares false, hence the `~`: it ends at the last number, as in the reference.
    """
    number = where(v < (N[0] + N[1]) / 2, F(N[0]), N[1])
    for k in range(2, 16):
        number = where(~(v < (N[k - 1] + N[k]) / 2), N[k], number)
    return number


@inline
def nearest_code(v: Vector) -> Vector:
    """The code of the number nearest to v (ROW), by the same comparisons."""
    code = CODE(0)
    for k in range(1, 16):
        code += CODE(~(v < (N[k - 1] + N[k]) / 2))
    return code


@inline
def fit(x: Vector, w: Vector, inverse: Vector) -> tuple[Vector, Vector]:
    """The sums of a weighted fit of the numbers of one grid."""
    lx = ll = F(0)
    for k in range(32):
        number = nearest_number(inverse * x[k])
        wn = w[k] * number
        lx += wn * x[k]
        ll += wn * number
    return lx, ll


@inline
def search(x: Vector, w: Vector) -> Vector:
    """The best scale of each lane's block; w is the weight of each value in the error."""
    size = most = F(0)
    for k in range(32):
        size, most = larger(size, most, x[k])
    lx, ll = fit(x, w, 1 / (-most / N[0]))
    scale = where(ll > 0, lx / ll, 0)
    best = scale * lx
    for k in range(GRIDS.size):
        lx, ll = fit(x, w, GRIDS[k] / most)
        better = (ll > 0) & (lx * lx > best * ll)
        scale = where(better, lx / ll, scale)
        best = where(better, scale * lx, best)
    return where(size < TINY, 0, scale)


@inline
def put_codes(out: npt.NDArray[np.uint8], to: int, x: npt.NDArray[np.float32], at: int, inverse: float) -> None:
    """Write the codes of the 32 weights from element `at` on to the 16 bytes from `to` on."""
    a = nearest_code(load(ROW, x, at) * inverse)
    b = nearest_code(load(ROW, x, at + 16) * inverse)
    store_u8(out, to, a | b << 4)


@inline
def put_weights(out: npt.NDArray[np.float32], to: int, data: npt.NDArray[np.uint8], at: int, scale: Vector) -> None:
    """Write the 32 weights that the 16 bytes from `at` on stand for."""
    codes = load_u8(CODE, data, at)
    store(out, to, scale * named(codes & 15))
    store(out, to + 16, scale * named(codes >> 4))


@inline
def named(code: Vector) -> Vector:
    """The numbers with these codes."""
    number = ROW(N[0])
    for k in range(1, 16):
        number = where(code >= k, N[k], number)
    return number
