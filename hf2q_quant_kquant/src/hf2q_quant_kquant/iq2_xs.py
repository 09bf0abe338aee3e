"""IQ2_XS: 256 weights in 74 bytes.

Sixteen sub-blocks of 16 weights; a weight is +-d * (scale + 1/2) / 4 * magnitude with a four-bit scale per sub-block,
where eight weights in a row share one of 512 points of magnitudes 8, 25 and 43 (see `grids`). Of those eight an even
number is negative, so that seven signs are enough (`on_grid.even_signs`). Bytes: d as float16; 32 times a word of nine
bits of point number and seven signs; 8 of scales.
Layout: block_iq2_xs of ggml/src/ggml-common.h; bytes: quantize_row_iq2_xs_impl of ggml-quants.c. There is no search
without importance there, and none here.
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
    spread_u16,
    store,
    to_half,
    where,
    writes,
)
from hf2q_quant_kquant.grids import grid, magnitudes
from hf2q_quant_kquant.importance import gather, place, squares
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

EIGHT, EIGHT_BITS = F32(8), I32(8)

SHAPE = Shape(groups=2, size=8, bits=2, top=2, whole=False)
TRIALS = numerators(2, 0.1, 9)

EMPTY = 1e-15
"""A sub-block whose largest magnitude is below this is taken as zero (GROUP_MAX_EPS of ggml-quants.c)."""


def encode(x: Floats, out: Bytes, importance: Floats) -> None:
    """Encode x (rows, columns) into out (rows, columns / 256 * 74).

    Errors: EncodeError where weights and importance overflow.
    """
    tables = grid("IQ2_XS")
    _encode(x, out, importance, tables.number, tables.lists, tables.near)
    check_sums("IQ2_XS", out, 74)


def decode(data: Bytes, out: Floats) -> None:
    """Decode data (rows, columns / 256 * 74) into out (rows, columns)."""
    _decode(data, out, magnitudes("IQ2_XS"))


@kernel(
    reads("float32"), writes("uint8"), reads("float32", 1), reads("int32", 1), reads("int32", 1), reads("uint16", 1)
)
def _encode(x: Floats, out: Bytes, importance: Floats, number: Table, lists: Table, near: Codes) -> None:
    last = x.size // 256 - 1
    # the pass over whole super-blocks takes 32 at a time, hence the size of the first
    work = Work(
        scratch(F, 32), scratch(F, 16), scratch(F, 16), scratch(F, 16), scratch(I, 2), scratch(I, 2), scratch(F, 1)
    )
    scales, head, places = scratch(F, 16), scratch(I, 3), scratch(I, 1)
    for at in range(0, last + 1, WIDE):  # one super-block per lane; spare lanes repeat the last one
        variance = squares(work.x, x, at, last) / 256
        place(places, importance, 256, at, last)
        top = F(0)
        for j in range(16):
            columns(work.x, 16, x, 16 * j, 256, at, last)
            gather(work.w, 16, importance, places, 16 * j)
            minus = even_signs(work, 16, weigh(work.x, work.w, 16, True, variance, 0))
            scale, largest = search(work, SHAPE, TRIALS, lists, near)
            scales[j], head[0] = finish(work, 2, scale, largest < EMPTY, minus)
            top = greater_scale(top, scales[j])
            put_sub_block(out, j, at, last, work.kept, head, number)
        put_scales(out, at, last, scales, top, head)


@inline
def put_sub_block(out: Bytes, j: int, at: int, last: int, kept: Vector, signs: Vector, number: Table) -> None:
    """Write points and signs of sub-block j of all lanes."""
    for lane in range(WIDE):
        to = 74 * min(at + lane, last) + 2 + 4 * j
        put16(out, to, number[kept[0, lane]] | (signs[0, lane] & 127) << 9)
        put16(out, to + 2, number[kept[1, lane]] | (signs[0, lane] >> 7 & 127) << 9)


@inline
def put_scales(out: Bytes, at: int, last: int, scales: Vector, top: Vector, head: Vector) -> None:
    """Write d and the scales of all lanes; without a scale above zero all of them are zero."""
    d = top / 31
    inverse = where(top == 0, 0, 1 / d)
    head[0] = to_half(d)
    for word in range(2):
        head[1 + word] = I(0)
        for j in range(8):
            head[1 + word] |= nearest_level(inverse * scales[8 * word + j], 15) << 4 * j
    for lane in range(WIDE):
        to = 74 * min(at + lane, last)
        put16(out, to, head[0, lane])
        put32(out, to + 66, head[1, lane])
        put32(out, to + 70, head[2, lane])


@kernel(reads("uint8"), writes("float32"), reads("float32"))
def _decode(data: Bytes, out: Floats, magnitudes: Floats) -> None:
    flat = data.reshape(-1)
    for block in range(out.size // 256):
        at = 74 * block
        d = from_half(spread_u16(EIGHT_BITS, data, at))
        for g in range(32):
            scale = flat[at + 66 + g // 4] >> 2 * (g & 2) & 15
            word = flat[at + 2 + 2 * g] | flat[at + 3 + 2 * g] << 8
            v = d * (EIGHT(scale) + 0.5) * 0.25 * load(EIGHT, magnitudes, 8 * (word & 511))
            minus = lshr(eighth_sign(EIGHT_BITS(word >> 9)), numbers(EIGHT_BITS))
            store(out, 256 * block + 8 * g, with_signs(v, minus))
