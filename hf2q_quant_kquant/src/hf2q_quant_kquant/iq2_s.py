"""IQ2_S: 256 weights in 82 bytes.

Sixteen sub-blocks of 16 weights; a weight is +-d * (scale + 1/2) / 4 * magnitude with a four-bit scale per sub-block,
where eight weights in a row share one of 1024 points of magnitudes 8, 25 and 43 (see `grids`). Bytes: d as float16, 32
of low bytes of point numbers, 32 of signs, 8 of the pairs of bits above the low bytes, 8 of scales.
Layout: block_iq2_s of ggml/src/ggml-common.h; bytes: quantize_row_iq2_s_impl of ggml-quants.c.
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
    spread_u8,
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

EIGHT, EIGHT_BITS = F32(8), I32(8)

SHAPE = Shape(groups=2, size=8, bits=2, top=2, whole=False)
TRIALS = numerators(2, 0.1, 9)

EMPTY = 1e-8
"""A sub-block whose largest magnitude is below this is taken as zero (GROUP_MAX_EPS_IQ2_S of ggml-quants.c)."""


def encode(x: Floats, out: Bytes, importance: Floats | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 256 * 82).

    Errors: EncodeError where weights and importance overflow.
    """
    tables = grid("IQ2_S")
    _encode(x, out, given(importance), tables.number, tables.lists, tables.near)
    if importance is not None:
        check_sums("IQ2_S", out, 82)


def decode(data: Bytes, out: Floats) -> None:
    """Decode data (rows, columns / 256 * 82) into out (rows, columns)."""
    _decode(data, out, magnitudes("IQ2_S"))


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
        variance = 2 * squares(work.x, x, at, last) / 256
        if importance.size > 0:
            place(places, importance, 256, at, last)
        top = F(0)
        for j in range(16):
            columns(work.x, 16, x, 16 * j, 256, at, last)
            if importance.size > 0:
                gather(work.w, 16, importance, places, 16 * j)
            minus = weigh(work.x, work.w, 16, importance.size > 0, variance, 0.25)
            scale, largest = search(work, SHAPE, TRIALS, lists, near)
            scales[j], head[0] = finish(work, 2, scale, largest < EMPTY, minus)
            top = greater_scale(top, scales[j])
            put_sub_blocks(out, j, at, last, work.kept, head, number)
        put_scales(out, at, last, scales, top, head)


@inline
def put_sub_blocks(out: Bytes, j: int, at: int, last: int, kept: Vector, signs: Vector, number: Table) -> None:
    """Write points and signs of sub-block j of all lanes."""
    flat = out.reshape(-1)
    for lane in range(WIDE):
        to = 82 * min(at + lane, last)
        a, b = number[kept[0, lane]], number[kept[1, lane]]
        put16(out, to + 2 + 2 * j, a & 255 | (b & 255) << 8)
        put16(out, to + 34 + 2 * j, signs[0, lane])
        high = a >> 8 | b >> 8 << 2
        flat[to + 66 + j // 2] = flat[to + 66 + j // 2] & 15 | high << 4 if j & 1 else high


@inline
def put_scales(out: Bytes, at: int, last: int, scales: Vector, top: Vector, head: Vector) -> None:
    """Write d and the scales of all lanes; without a scale above zero all of them are zero."""
    d = top / 31
    inverse = where(top == 0, 0, 1 / d)
    head[0] = to_half(d * 0.9875)
    for word in range(2):
        head[1 + word] = I(0)
        for j in range(8):
            head[1 + word] |= nearest_level(inverse * scales[8 * word + j], 15) << 4 * j
    for lane in range(WIDE):
        to = 82 * min(at + lane, last)
        put16(out, to, head[0, lane])
        put32(out, to + 74, head[1, lane])
        put32(out, to + 78, head[2, lane])


@kernel(reads("uint8"), writes("float32"), reads("float32"))
def _decode(data: Bytes, out: Floats, magnitudes: Floats) -> None:
    flat = data.reshape(-1)
    for block in range(out.size // 256):
        at = 82 * block
        d = from_half(spread_u16(EIGHT_BITS, data, at))
        for g in range(32):
            scale = flat[at + 74 + g // 4] >> 2 * (g & 2) & 15
            point = flat[at + 2 + g] | (flat[at + 66 + g // 4] >> 2 * (g & 3) & 3) << 8
            v = d * (EIGHT(scale) + 0.5) * 0.25 * load(EIGHT, magnitudes, 8 * point)
            minus = lshr(spread_u8(EIGHT_BITS, data, at + 34 + g), numbers(EIGHT_BITS))
            store(out, 256 * block + 8 * g, with_signs(v, minus))
