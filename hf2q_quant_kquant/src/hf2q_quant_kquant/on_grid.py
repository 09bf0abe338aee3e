"""The search that IQ2 and IQ3 types share: the scale of a sub-block and the points of the grid for its groups.

One super-block lies in each lane; `Work` holds the magnitudes of one sub-block of it and what the search remembers,
`Shape` says how a type cuts it into groups, `grids.Grid` gives the tables. A group is stored as the point with the
levels that its weights round to; where there is no such point, the points near it are tried, many at once, one group
after the other. Source: quantize_row_iq3_xxs_impl, quantize_row_iq3_s_impl, quantize_row_iq2_xs_impl and
quantize_row_iq2_s_impl of ggml-quants.c, and their iq3_find_best_neighbour and iq2_find_best_neighbour.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hf2q.errors import EncodeError
from hf2q.simd import (
    F32,
    I32,
    LANES,
    WIDE,
    Vector,
    as_float,
    as_int,
    first,
    inline,
    load_u16,
    lowest,
    lshr,
    numbers,
    sqrt,
    where,
)
from hf2q_quant_kquant.grids import LENGTH_BITS
from hf2q_quant_kquant.parts import LARGEST, MAGIC, F, I

Floats = npt.NDArray[np.float32]
Table = npt.NDArray[np.int32]
Codes = npt.NDArray[np.uint16]

NEAR, NEAR_CODE = F32(LANES), I32(LANES)

LENGTH = (1 << LENGTH_BITS) - 1

NAN = float("nan")

MOVED = 1 << 16
"""Set beside the code of a group whose levels were no point of the grid."""


class Shape(NamedTuple):
    """A sub-block has `groups` groups of `size` weights; a code holds their levels 0..top in `bits` bits each.

    whole      once one group is off the grid, all are rounded anew at the end, not just those that are
    """

    groups: int
    size: int
    bits: int
    top: int
    whole: bool


class Work(NamedTuple):
    """Scratches: for each weight of a sub-block its magnitude x, what its error counts (w), the square root of that,
    w * x; for each group the code of a trial and the code kept; the scale of a trial."""

    x: Vector
    w: Vector
    root: Vector
    wx: Vector
    code: Vector
    kept: Vector
    step: Vector


def numerators(top: int, step: float, reach: int) -> Floats:
    """Of the inverses of trial scales: 2 * top + 1 + step * k, k = -reach to reach, rounded as the reference does."""
    return np.float32(2 * top + 1) + np.arange(-reach, reach + 1, dtype=np.float32) * np.float32(step)


@inline
def weigh(x: Vector, w: Vector, n: int, weighted: bool, variance: Vector, share: float) -> Vector:
    """Signs, one bit a weight; x becomes magnitudes; w what an error counts: importance * sqrt(variance + x * x) where
    w holds importance, else share * variance + x * x."""
    minus = I(0)
    for k in range(n):
        square = x[k] * x[k]
        w[k] = w[k] * sqrt(variance + square) if weighted else share * variance + square
        minus |= I(x[k] < 0) << k
        x[k] = abs(x[k])
    return minus


@inline
def even_signs(work: Work, n: int, minus: Vector) -> Vector:
    """Seven signs of every eight of n weights, packed: where the number of signs is odd, that of the weight whose
    error counts least is turned, and its magnitude becomes negative."""
    packed = I(0)
    for start in range(0, n, 8):
        signs = lshr(minus, start) & 255
        odd = (signs ^ signs >> 4) & 15
        odd = (odd ^ odd >> 2) & 3
        turn = ((odd ^ odd >> 1) & 1) == 1
        least, place = work.w[start] * work.x[start] * work.x[start], I(0)
        for i in range(1, 8):
            error = work.w[start + i] * work.x[start + i] * work.x[start + i]
            place = where(error < least, i, place)
            least = min(least, error)
        for i in range(8):
            here = turn & (place == i)
            work.x[start + i] = where(here, -work.x[start + i], work.x[start + i])
            signs ^= I(here) << i
        packed |= (signs & 127) << 7 * start // 8
    return packed


@inline
def eighth_sign(signs: Vector) -> Vector:
    """Seven signs and the eighth, which makes their number even."""
    odd = signs ^ signs >> 4
    odd ^= odd >> 2
    return signs | ((odd ^ odd >> 1) & 1) << 7


@inline
def nearest_level(v: Vector, top: int) -> Vector:
    """The level 0..top (at most 15) of the odd number nearest to v; beyond +-2**22 it wraps first, as the reference."""
    return min(max(as_int(0.5 * (v - 1) + MAGIC) & 0x7FFFFF, 0x400000), 0x400000 + top) & 15


@inline
def best_near(work: Work, shape: Shape, group: int, lane: int, near: Codes, begin: int, count: int) -> int:
    """The code of the point with the least error, of `count` in `near` from `begin` on; the first of equal ones."""
    best, found, scale = np.float32(LARGEST), int(near[begin]), work.step[0, lane]
    for at in range(0, count, LANES):
        twice = load_u16(NEAR_CODE, near, begin + at) << 1
        error = NEAR(0)
        for i in range(shape.size):
            k = shape.size * group + i
            odd = twice >> shape.bits * i & 2 * ((1 << shape.bits) - 1) | 1
            d = scale * NEAR(odd) - work.x[k, lane]
            error += work.root[k, lane] * d * d
        error = where((numbers(NEAR_CODE) < count - at) & (error < LARGEST), error, LARGEST)
        least = lowest(error)
        if least < best:
            best, found = least, int(near[begin + at + first(error == least)])
    return found


@inline
def round_groups(work: Work, shape: Shape, inverse: Vector, lists: Table, near: Codes) -> None:
    """The codes of a trial: levels of inverse * x, or of the best point near them, marked as MOVED."""
    for g in range(shape.groups):
        code = I(0)
        for i in range(shape.size):
            code |= nearest_level(inverse * work.x[shape.size * g + i], shape.top) << shape.bits * i
        work.code[g] = code
    for lane in range(WIDE):
        for g in range(shape.groups):
            place = lists[work.code[g, lane]]
            if place != 0:
                found = best_near(work, shape, g, lane, near, place >> LENGTH_BITS, place & LENGTH)
                work.code[g, lane] = np.int32(found) | MOVED


@inline
def fit(work: Work, shape: Shape) -> tuple[Vector, Vector]:
    """The sums of a weighted fit of the codes of a trial."""
    lx = ll = F(0)
    for g in range(shape.groups):
        twice = work.code[g] << 1
        for i in range(shape.size):
            k = shape.size * g + i
            odd = F(twice >> shape.bits * i & 2 * ((1 << shape.bits) - 1) | 1)
            lx += work.wx[k] * odd
            ll += work.w[k] * odd * odd
    return lx, ll


@inline
def search(work: Work, shape: Shape, trials: Floats, lists: Table, near: Codes) -> tuple[Vector, Vector]:
    """The scale of the sub-block, which may be negative, and the greatest x; work.kept = the codes that go with it."""
    largest, heaviest = work.x[0], F(0)
    for k in range(shape.groups * shape.size):
        largest, heaviest = max(largest, work.x[k]), max(heaviest, work.w[k])
        work.root[k] = sqrt(work.w[k])
        work.wx[k] = work.w[k] * work.x[k]
    for g in range(shape.groups):
        work.kept[g] = I(MOVED if shape.whole else 0)
    scale, best, taken = largest / (2 * shape.top + 1), F(0), F(0) != 0
    for k in range(trials.size + 1):
        if k < trials.size:
            inverse = trials[k] / largest
            work.step[0] = 1 / inverse
        else:  # groups that were moved are rounded once more, by the scale found
            moved = I(0)
            for g in range(shape.groups):
                moved |= work.kept[g]
            taken = (moved >= MOVED) & (scale > 0)
            inverse = 1 / scale
            work.step[0] = scale
        round_groups(work, shape, inverse, lists, near)
        if k == trials.size and not shape.whole:
            for g in range(shape.groups):
                work.code[g] = where(work.kept[g] >= MOVED, work.code[g], work.kept[g])
        lx, ll = fit(work, shape)
        if k < trials.size:
            taken = (ll > 0) & (lx * lx > best * ll)
        scale = where(taken & (ll > 0), lx / ll, scale)
        best = where(taken, scale * lx, best)
        for g in range(shape.groups):
            work.kept[g] = where(taken, work.code[g], work.kept[g])
    # an infinite weight leaves nothing to choose by (the reference stops there): NaN, for which the block is refused
    return where(heaviest <= LARGEST, scale, NAN), largest


@inline
def finish(work: Work, groups: int, scale: Vector, empty: Vector, minus: Vector) -> tuple[Vector, Vector]:
    """Scale and signs to store: not negative, and all zero for an empty sub-block, as are its codes in work.kept."""
    for g in range(groups):
        work.kept[g] = where(empty, 0, work.kept[g] & MOVED - 1)
    flip = scale < 0
    return where(empty, 0, where(flip, -scale, scale)), where(empty, 0, where(flip, ~minus, minus))


def check_sums(qtype: str, out: npt.NDArray[np.uint8], block_bytes: int) -> None:
    """Look at d, the first number of every super-block of `out` (rows, bytes), after encoding with importance.

    Errors: EncodeError naming the row, counted from the first of `out`, and the columns of the first super-block whose
    d is infinite or NaN. (Without importance that happens only to weights that are themselves beyond float16, for
    which QuantCodec looks.)
    """
    bad = (out.reshape(len(out), out.shape[1] // block_bytes, block_bytes)[:, :, 1] & 0x7C) == 0x7C
    if not bad.any():
        return
    row, block = (int(index) for index in np.argwhere(bad)[0])
    raise EncodeError(
        f"{qtype} cannot hold columns {256 * block} to {256 * block + 255} of row {row}: weights or importance "
        "overflow",
        hint="look for damage in the checkpoint and in the importance matrix, or store this tensor as BF16 or F32",
    )


@inline
def greater_scale(top: Vector, scale: Vector) -> Vector:
    """The greater of two scales; a scale that is NaN stays, so that the block is refused."""
    return where(scale == scale, max(top, scale), scale)


@inline
def with_signs(x: Vector, minus: Vector) -> Vector:
    """x with its sign turned where the lowest bit of `minus` is set."""
    return as_float(as_int(x) ^ minus << 31)
