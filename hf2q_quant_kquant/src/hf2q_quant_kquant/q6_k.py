"""Q6_K: 256 weights in 210 bytes.

Sixteen sub-blocks of 16 weights; a weight is d * scale * code with a code in -32..31 and a signed 8-bit scale per
sub-block. Bytes: 128 of low halves, 64 of high bit pairs, 16 scales, d as float16. In each half of 128 weights, taken
as four rows of 32, row 0 and 2 share the low and high halves of 32 bytes, row 1 and 3 those of the next 32, and the
four rows share the bit pairs of 32 bytes.
Layout: block_q6_K of ggml/src/ggml-common.h; bytes: quantize_row_q6_K_ref and quantize_row_q6_K_impl of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import (
    F32,
    I32,
    WIDE,
    Vector,
    as_int,
    columns,
    from_half,
    inline,
    kernel,
    load,
    load_i8,
    load_u8,
    put16,
    put32,
    reads,
    scratch,
    spread_u16,
    store,
    store_u8,
    to_half,
    where,
    writes,
)
from hf2q_quant_kquant.importance import gather, given, place
from hf2q_quant_kquant.parts import MAGIC, TINY, F, I, larger
from hf2q_quant_kquant.scales import fit_scale, grids, unsigned_code

ROW, CODE = F32(16), I32(16)

GRIDS = grids(32)


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 256 * 210), with importance (columns,) or None."""
    _encode(x, out, given(importance))


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 256 * 210) into out (rows, columns)."""
    _decode(data, out)


@kernel(reads("float32"), writes("uint8"), reads("float32", 1))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32]) -> None:
    last = x.size // 256 - 1
    weighted = importance.size > 0
    block, w, wx, places = scratch(F, 16), scratch(F, 16), scratch(F, 16), scratch(I, 1)
    scales, inverses, offsets = scratch(F, 16), scratch(F, 16), scratch(F, 16)
    tail = scratch(I, 6)  # four words of scales, d, whether all is zero
    for first in range(0, last + 1, WIDE):  # one super-block per lane; spare lanes repeat the last one
        if weighted:
            place(places, importance, 256, first, last)
        for j in range(16):
            columns(block, 16, x, 16 * j, 256, first, last)
            if weighted:
                gather(w, 16, importance, places, 16 * j)  # as it is: the reference multiplies with nothing here
            else:
                for k in range(16):
                    w[k] = block[k] * block[k]
            scales[j], inverses[j], offsets[j] = fit_scale(block, w, wx, 16, 32, True, GRIDS)
        pack_tail(tail, scales)
        for lane in range(WIDE):
            at = min(first + lane, last)
            if tail[5, lane] != 0:
                for k in range(0, 208, 16):
                    store_u8(out, 210 * at + k, CODE(0))
                put16(out, 210 * at + 208, 0)
                continue
            for word in range(4):
                put32(out, 210 * at + 192 + 4 * word, tail[word, lane])
            put16(out, 210 * at + 208, tail[4, lane])
            for j in (0, 1, 8, 9):  # the codes of sub-blocks j, j + 2, j + 4, j + 6 share bytes
                a = final(x, at, j, lane, scales, inverses, offsets)
                b = final(x, at, j + 2, lane, scales, inverses, offsets)
                c = final(x, at, j + 4, lane, scales, inverses, offsets)
                e = final(x, at, j + 6, lane, scales, inverses, offsets)
                low, high = 210 * at + 8 * (j & 8) + 16 * (j & 1), 210 * at + 128 + 4 * (j & 8) + 16 * (j & 1)
                store_u8(out, low, a & 15 | (c & 15) << 4)
                store_u8(out, low + 32, b & 15 | (e & 15) << 4)
                store_u8(out, high, a >> 4 | b >> 4 << 2 | c >> 4 << 4 | e >> 4 << 6)


@inline
def pack_tail(tail: Vector, scales: Vector) -> None:
    """The last 18 bytes of the blocks as words; scales become what a decoder will make of them."""
    size = most = F(0)
    for j in range(16):
        size, most = larger(size, most, scales[j])
    inverse = -128 / most
    tail[4] = to_half(1 / inverse)
    tail[5] = I(size < TINY)
    d = from_half(tail[4])
    for word in range(4):
        tail[word] = I(0)
        for k in range(4):
            j = 4 * word + k
            byte = min((as_int(inverse * scales[j] + MAGIC) & 0x7FFFFF) - 0x400000, 127) & 255
            tail[word] |= byte << 8 * k
            scales[j] = d * F(byte << 24 >> 24)


@inline
def final(
    x: npt.NDArray[np.float32], at: int, j: int, lane: int, scales: Vector, inverses: Vector, offsets: Vector
) -> Vector:
    """Codes 0..63 of one sub-block; those of the search if its scale rounded to zero."""
    v, scale = load(ROW, x, 256 * at + 16 * j), scales[j, lane]
    v = where(ROW(scale) == 0, v * inverses[j, lane] + offsets[j, lane], v / scale)
    return unsigned_code(v, 32)


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    scales = scratch(ROW, 1)
    for at in range(out.size // 256):
        d = from_half(spread_u16(CODE, data, 210 * at + 208))
        scales[0] = d * ROW(load_i8(CODE, data, 210 * at + 192))
        for j in (0, 1, 8, 9):
            low, high = 210 * at + 8 * (j & 8) + 16 * (j & 1), 210 * at + 128 + 4 * (j & 8) + 16 * (j & 1)
            a, b, pairs = load_u8(CODE, data, low), load_u8(CODE, data, low + 32), load_u8(CODE, data, high)
            to = 256 * at + 16 * j
            store(out, to, ROW((a & 15 | (pairs & 3) << 4) - 32) * scales[0, j])
            store(out, to + 32, ROW((b & 15 | (pairs >> 2 & 3) << 4) - 32) * scales[0, j + 2])
            store(out, to + 64, ROW((a >> 4 | (pairs >> 4 & 3) << 4) - 32) * scales[0, j + 4])
            store(out, to + 96, ROW((b >> 4 | (pairs >> 6 & 3) << 4) - 32) * scales[0, j + 6])
