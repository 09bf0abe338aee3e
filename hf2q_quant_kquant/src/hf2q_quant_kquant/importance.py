"""What an importance matrix changes in every type: how much the error of each weight counts.

Importance is one vector of `columns` numbers, a mean squared activation for each, shared by all rows of a matrix. The
reference weighs the error of x by importance * sqrt(variance + x * x), where the variance is that of the whole row
(legacy types) or a multiple of that of the super-block. Source: quantize_row_*_impl of ggml-quants.c.

Kernels take importance as an array that is empty where there is none (`given`): one kernel then serves both searches.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import F32, LANES, WIDE, Vector, columns, inline, kernel, load, reads, scratch, sqrt, transpose, writes
from hf2q_quant_kquant.parts import F, I

ROW = F32(LANES)


def given(importance: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float32]:
    """Importance as kernels take it: empty for None."""
    return np.empty(0, np.float32) if importance is None else importance


@inline
def place(places: Vector, importance: npt.NDArray[np.float32], size: int, first: int, last: int) -> None:
    """places[0] = where in `importance` each lane's block of `size` weights begins; blocks as in `columns`."""
    for lane in range(WIDE):
        places[0, lane] = size * (min(first + lane, last) % (importance.size // size))


@inline
def gather(w: Vector, count: int, importance: npt.NDArray[np.float32], places: Vector, start: int) -> None:
    """w[k] = the importance of element start + k of each lane's block, for k < count (a multiple of 16)."""
    tile = scratch(ROW, LANES)
    for lane in range(0, WIDE, LANES):
        for k in range(0, count, LANES):
            for r in range(LANES):
                tile[r] = load(ROW, importance, places[0, lane + r] + start + k)
            transpose(tile, w, k, lane)


@inline
def weigh(
    w: Vector,
    x: Vector,
    count: int,
    importance: npt.NDArray[np.float32],
    places: Vector,
    start: int,
    variance: Vector,
) -> None:
    """w[k] = what the error of x[k] counts; x[k] is element start + k of each lane's block."""
    gather(w, count, importance, places, start)
    for k in range(count):
        w[k] = w[k] * sqrt(variance + x[k] * x[k])


@inline
def weigh_by_row(
    w: Vector,
    x: Vector,
    importance: npt.NDArray[np.float32],
    variances: npt.NDArray[np.float32],
    first: int,
    last: int,
) -> None:
    """`weigh` for the legacy types: blocks of 32, `variances` has one number for each row."""
    places, variance = scratch(I, 1), scratch(F, 1)
    place(places, importance, 32, first, last)
    for lane in range(WIDE):
        variance[0, lane] = variances[min(first + lane, last) // (importance.size // 32)]
    weigh(w, x, 32, importance, places, 0, variance[0])


@inline
def squares(block: Vector, x: npt.NDArray[np.float32], first: int, last: int) -> Vector:
    """The sum of squares of each lane's super-block of 256; `block` is working memory."""
    total = F(0)
    for j in range(0, 256, 32):
        columns(block, 32, x, j, 256, first, last)
        for k in range(32):
            total += block[k] * block[k]
    return total


def variances(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The mean square of each row of x (rows, columns), float32 (rows,)."""
    out = np.empty(len(x), np.float32)
    _variances(x, out)
    return out


@kernel(reads("float32"), writes("float32", 1))
def _variances(x: npt.NDArray[np.float32], out: npt.NDArray[np.float32]) -> None:
    # the order of the sum counts: strictly from left to right, four rows at a time to hide the latency of an addition
    rows, size = x.shape
    for row in range(0, rows, 4):
        b, c, d = min(row + 1, rows - 1), min(row + 2, rows - 1), min(row + 3, rows - 1)
        p = q = r = s = np.float32(0)
        for k in range(size):
            p += x[row, k] * x[row, k]
            q += x[b, k] * x[b, k]
            r += x[c, k] * x[c, k]
            s += x[d, k] * x[d, k]
        n = np.float32(size)
        out[row], out[b], out[c], out[d] = p / n, q / n, r / n, s / n
