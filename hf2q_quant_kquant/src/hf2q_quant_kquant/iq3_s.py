"""IQ3_S: 256 weights in 110 bytes.

Eight sub-blocks of 32 weights with a four-bit scale each; a weight is +-d * (2 * scale + 1) * magnitude, where four
weights in a row share one of 512 points of magnitudes 1, 3, … 15 (see `grids`). Bytes: d as float16, 64 of low bytes
of point numbers, 8 of their ninth bits, 32 of signs, 4 of scales.
Layout: block_iq3_s of ggml/src/ggml-common.h; bytes: quantize_row_iq3_s_impl of ggml-quants.c, except for zeros that
fill a sub-block but not the super-block: there the reference (October 2026) does not step over the sub-block's place,
so that the points and signs after it belong to other weights when they are decoded.
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

SHAPE = Shape(groups=8, size=4, bits=3, top=7, whole=True)
TRIALS = numerators(7, 0.2, 9)


def encode(x: Floats, out: Bytes, importance: Floats | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 256 * 110).

    Errors: EncodeError where weights and importance overflow.
    """
    tables = grid("IQ3_S")
    _encode(x, out, given(importance), tables.number, tables.lists, tables.near)
    if importance is not None:
        check_sums("IQ3_S", out, 110)


def decode(data: Bytes, out: Floats) -> None:
    """Decode data (rows, columns / 256 * 110) into out (rows, columns)."""
    _decode(data, out, magnitudes("IQ3_S"))


@kernel(
    reads("float32"), writes("uint8"), reads("float32", 1), reads("int32", 1), reads("int32", 1), reads("uint16", 1)
)
def _encode(x: Floats, out: Bytes, importance: Floats, number: Table, lists: Table, near: Codes) -> None:
    last = x.size // 256 - 1
    work = Work(
        scratch(F, 32), scratch(F, 32), scratch(F, 32), scratch(F, 32), scratch(I, 8), scratch(I, 8), scratch(F, 1)
    )
    scales, head, places = scratch(F, 8), scratch(I, 2), scratch(I, 1)
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
            scale, largest = search(work, SHAPE, TRIALS, lists, near)
            scales[j], head[0] = finish(work, 8, scale, largest == 0, minus)
            top = greater_scale(top, scales[j])
            put_sub_blocks(out, j, at, last, work.kept, head, number)
        put_scales(out, at, last, scales, top, head)


@inline
def put_sub_blocks(out: Bytes, j: int, at: int, last: int, kept: Vector, signs: Vector, number: Table) -> None:
    """Write points and signs of sub-block j of all lanes."""
    flat = out.reshape(-1)
    for lane in range(WIDE):
        to = 110 * min(at + lane, last)
        high = 0
        for g in range(8):
            point = number[kept[g, lane]]
            flat[to + 2 + 8 * j + g] = point & 255
            high |= point >> 8 << g
        flat[to + 66 + j] = high
        put32(out, to + 74 + 4 * j, signs[0, lane])


@inline
def put_scales(out: Bytes, at: int, last: int, scales: Vector, top: Vector, head: Vector) -> None:
    """Write d and the scales of all lanes; without a scale above zero all of them are zero."""
    d = top / 31
    inverse = where(top == 0, 0, 1 / d)
    head[0] = to_half(d * 1.033)
    head[1] = I(0)
    for j in range(8):
        head[1] |= nearest_level(inverse * scales[j], 15) << 4 * j
    for lane in range(WIDE):
        to = 110 * min(at + lane, last)
        put16(out, to, head[0, lane])
        put32(out, to + 106, head[1, lane])


@kernel(reads("uint8"), writes("float32"), reads("float32"))
def _decode(data: Bytes, out: Floats, magnitudes: Floats) -> None:
    flat = data.reshape(-1)
    for block in range(out.size // 256):
        at = 110 * block
        d = from_half(spread_u16(FOUR_BITS, data, at))
        for j in range(8):
            step = d * (2 * (flat[at + 106 + j // 2] >> 4 * (j & 1) & 15) + 1)
            minus = lshr(spread(FOUR_BITS, data, at + 74 + 4 * j), numbers(FOUR_BITS))
            for g in range(8):
                point = flat[at + 2 + 8 * j + g] | (flat[at + 66 + j] >> g & 1) << 8
                v = step * load(FOUR, magnitudes, 4 * point)
                store(out, 256 * block + 32 * j + 4 * g, with_signs(v, lshr(minus, 4 * g)))
