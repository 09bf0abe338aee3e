"""IQ3_XXS: 256 weights in 98 bytes.

Eight sub-blocks of 32 weights; a weight is +-d * (scale + 1/2) / 2 * magnitude with a four-bit scale per sub-block,
where four weights in a row share one of 256 points of magnitudes 4, 12, … 62 (see `grids`). Of eight weights in a row
an even number is negative, so that seven signs are enough (`on_grid.even_signs`). Bytes: d as float16; 64 point
numbers; for each sub-block a word with four times seven signs, scale on top.
Layout: block_iq3_xxs of ggml/src/ggml-common.h; bytes: quantize_row_iq3_xxs_impl of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import (
    F32,
    I32,
    WIDE,
    Vector,
    columns,
    from_half,
    inline,
    kernel,
    load,
    lshr,
    numbers,
    put16,
    put32,
    reads,
    scratch,
    spread,
    spread_u16,
    store,
    to_half,
    where,
    writes,
)
from hf2q_quant_kquant.grids import grid, magnitudes
from hf2q_quant_kquant.importance import gather, given, place, squares
from hf2q_quant_kquant.on_grid import (
    Codes,
    Floats,
    Shape,
    Table,
    Work,
    check_sums,
    eighth_sign,
    even_signs,
    finish,
    greater_scale,
    nearest_level,
    numerators,
    search,
    weigh,
    with_signs,
)
from hf2q_quant_kquant.parts import F, I

Bytes = npt.NDArray[np.uint8]

FOUR, FOUR_BITS = F32(4), I32(4)

SHAPE = Shape(groups=8, size=4, bits=3, top=7, whole=False)
TRIALS = numerators(7, 0.2, 15)

EMPTY = 1e-8
"""A sub-block whose largest magnitude is below this is taken as zero (GROUP_MAX_EPS_IQ3_XXS of ggml-quants.c)."""


def encode(x: Floats, out: Bytes, importance: Floats | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 256 * 98).

    Errors: EncodeError where weights and importance overflow.
    """
    tables = grid("IQ3_XXS")
    _encode(x, out, given(importance), tables.number, tables.lists, tables.near)
    if importance is not None:
        check_sums("IQ3_XXS", out, 98)


def decode(data: Bytes, out: Floats) -> None:
    """Decode data (rows, columns / 256 * 98) into out (rows, columns)."""
    _decode(data, out, magnitudes("IQ3_XXS"))


@kernel(
    reads("float32"), writes("uint8"), reads("float32", 1), reads("int32", 1), reads("int32", 1), reads("uint16", 1)
)
def _encode(x: Floats, out: Bytes, importance: Floats, number: Table, lists: Table, near: Codes) -> None:
    last = x.size // 256 - 1
    work = Work(
        scratch(F, 32), scratch(F, 32), scratch(F, 32), scratch(F, 32), scratch(I, 8), scratch(I, 8), scratch(F, 1)
    )
    scales, signs, half, places = scratch(F, 8), scratch(I, 8), scratch(I, 1), scratch(I, 1)
    for at in range(0, last + 1, WIDE):  # one super-block per lane; spare lanes repeat the last one
        variance = 2 * squares(work.x, x, at, last) / 256
        if importance.size > 0:
            place(places, importance, 256, at, last)
        top = F(0)
        for j in range(8):
            columns(work.x, 32, x, 32 * j, 256, at, last)
            if importance.size > 0:
                gather(work.w, 32, importance, places, 32 * j)
            minus = weigh(work.x, work.w, 32, importance.size > 0, variance, 0)
            minus = even_signs(work, 32, minus)
            scale, largest = search(work, SHAPE, TRIALS, lists, near)
            scales[j], signs[j] = finish(work, 8, scale, largest < EMPTY, minus)
            top = greater_scale(top, scales[j])
            put_points(out, j, at, last, work.kept, number)
        put_scales(out, at, last, scales, top, signs, half)


@inline
def put_points(out: Bytes, j: int, at: int, last: int, kept: Vector, number: Table) -> None:
    """Write the point numbers of sub-block j of all lanes."""
    flat = out.reshape(-1)
    for lane in range(WIDE):
        to = 98 * min(at + lane, last) + 2 + 8 * j
        for g in range(8):
            flat[to + g] = number[kept[g, lane]]


@inline
def put_scales(out: Bytes, at: int, last: int, scales: Vector, top: Vector, signs: Vector, half: Vector) -> None:
    """Write d, signs and scales of all lanes; without a scale above zero all scales are zero."""
    d = top / 31
    inverse = where(top == 0, 0, 1 / d)
    half[0] = to_half(d * 1.0125)
    for j in range(8):
        signs[j] = signs[j] & 0x0FFFFFFF | nearest_level(inverse * scales[j], 15) << 28
    for lane in range(WIDE):
        to = 98 * min(at + lane, last)
        put16(out, to, half[0, lane])
        for j in range(8):
            put32(out, to + 66 + 4 * j, signs[j, lane])


@kernel(reads("uint8"), writes("float32"), reads("float32"))
def _decode(data: Bytes, out: Floats, magnitudes: Floats) -> None:
    flat = data.reshape(-1)
    word = scratch(FOUR_BITS, 1)
    for block in range(out.size // 256):
        at = 98 * block
        d = from_half(spread_u16(FOUR_BITS, data, at))
        for j in range(8):
            word[0] = spread(FOUR_BITS, data, at + 66 + 4 * j)
            step = d * (FOUR(lshr(word[0], 28)) + 0.5) * 0.5
            for g in range(8):
                signs = eighth_sign(lshr(word[0], 7 * (g // 2)) & 127)
                v = step * load(FOUR, magnitudes, 4 * flat[at + 2 + 8 * j + g])
                minus = lshr(signs, numbers(FOUR_BITS) + 4 * (g & 1))
                store(out, 256 * block + 32 * j + 4 * g, with_signs(v, minus))
