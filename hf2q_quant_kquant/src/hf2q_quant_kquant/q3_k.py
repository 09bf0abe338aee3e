"""Q3_K: 256 weights in 110 bytes.

Sixteen sub-blocks of 16 weights; a weight is d * scale * code with a code in -4..3 and a scale in -32..31 per
sub-block. Bytes: 32 of third bits, byte k holding in bit j that of weight 32 * j + k; 64 of low bit pairs; 12 of scales
+ 32; d as float16. In each half of 128 weights, taken as four rows of 32, the four rows share the bit pairs of 32
bytes. Of the scales' 12 bytes, the first 8 hold the low halves of scales k and k + 8, the last 4 the high pairs of
k, k + 4, k + 8 and k + 12.
Layout: block_q3_K of ggml/src/ggml-common.h; bytes: quantize_row_q3_K_ref and quantize_row_q3_K_impl of ggml-quants.c.
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
    load_u8,
    lshr,
    numbers,
    put16,
    put32,
    reads,
    scratch,
    spread,
    spread_u16,
    store,
    store_u8,
    to_half,
    where,
    writes,
)
from hf2q_quant_kquant.importance import given, place, squares, weigh
from hf2q_quant_kquant.parts import F, I, larger
from hf2q_quant_kquant.scales import fit_scale, grids, unsigned_code
from hf2q_quant_kquant.sweeps import GROUPS, search

ROW, CODE = F32(16), I32(16)
GRIDS, SCALE_GRIDS = grids(4), grids(32)
SCALES, CODES = 16 * GROUPS, 32 * GROUPS


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 256 * 110), with importance (columns,) or None."""
    _encode(x, out, given(importance))


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 256 * 110) into out (rows, columns)."""
    _decode(data, out)


@kernel(reads("float32"), writes("uint8"), reads("float32", 1))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32]) -> None:
    last = x.size // 256 - 1
    scales, s, searched, tail = scratch(F, 16), scratch(I, 16), scratch(I, 32), scratch(I, 4)
    all_scales, all_searched = scratch(F, SCALES), scratch(I, CODES)
    for first in range(0, last + 1, WIDE):  # one super-block per lane; spare lanes repeat the last one
        if importance.size > 0:
            d = weighted_search(x, importance, first, last, scales, s, searched)
        else:
            group = first // WIDE % GROUPS
            if group == 0:
                search(x, first, last, all_scales, all_searched)
            for j in range(16):
                scales[j] = all_scales[16 * group + j]
            for j in range(32):
                searched[j] = all_searched[32 * group + j]
            d = by_maximum(scales, s)
        pack_tail(tail, d, s, scales)
        for lane in range(WIDE):
            at = min(first + lane, last)
            for word in range(3):
                put32(out, 110 * at + 96 + 4 * word, tail[word, lane])
            put16(out, 110 * at + 108, tail[3, lane])
            for column in (0, 1):
                third = CODE(0)
                for half in (0, 1):
                    pairs = CODE(0)
                    for k in range(4):  # these four sub-blocks share bytes
                        c = final(x, at, 8 * half + 2 * k + column, lane, scales, searched)
                        pairs |= (c & 3) << 2 * k
                        third |= c >> 2 << 4 * half + k
                    store_u8(out, 110 * at + 32 + 32 * half + 16 * column, pairs)
                store_u8(out, 110 * at + 16 * column, third)


@inline
def by_maximum(scales: Vector, s: Vector) -> Vector:
    """d that gives the scale of largest magnitude the integer -32 (0 as stored in s), and the integers of all."""
    size = most = F(0)
    for j in range(16):
        size, most = larger(size, most, scales[j])
    inverse = -32 / most
    for j in range(16):
        s[j] = where(most == 0, 0, unsigned_code(inverse * scales[j], 32))
    return where(most == 0, 0, 1 / inverse)


@inline
def weighted_search(
    x: npt.NDArray[np.float32],
    importance: npt.NDArray[np.float32],
    first: int,
    last: int,
    scales: Vector,
    s: Vector,
    searched: Vector,
) -> Vector:
    """d of WIDE super-blocks and, for each of their sub-blocks j: scales[j] of the fit, its integer s[j], and the codes
    0..7 that belong to the fit, four bits each, in searched[2 * j] and searched[2 * j + 1]."""
    block, w, wx, wide = scratch(F, 16), scratch(F, 16), scratch(F, 16), scratch(F, 32)
    sums, places = scratch(F, 16), scratch(I, 1)
    place(places, importance, 256, first, last)
    variance = squares(wide, x, first, last) * 2 / 256
    for j in range(16):
        columns(block, 16, x, 16 * j, 256, first, last)
        weigh(w, block, 16, importance, places, 16 * j, variance)
        sums[j] = w[0]
        for k in range(1, 16):
            sums[j] = sums[j] + w[k]
        scales[j], inverse, offset = fit_scale(block, w, wx, 16, 4, True, GRIDS)
        for word in range(2):
            searched[2 * j + word] = I(0)
            for k in range(8):
                code = unsigned_code(block[8 * word + k] * inverse + offset, 4)
                searched[2 * j + word] = searched[2 * j + word] | code << 4 * k
    d, inverse, offset = fit_scale(scales, sums, wx, 16, 32, False, SCALE_GRIDS)
    for j in range(16):
        s[j] = where(offset == 0, unsigned_code(scales[j] * inverse, 32), 0)
    return d


@inline
def pack_tail(tail: Vector, d: Vector, s: Vector, scales: Vector) -> None:
    """The last 14 bytes of the blocks as words; scales become what a decoder will make of them."""
    tail[3] = to_half(d)
    d = from_half(tail[3])
    tail[0] = tail[1] = tail[2] = I(0)
    for j in range(16):
        word = (j & 7) >> 2
        tail[word] = tail[word] | (s[j] & 15) << (8 * (j & 3) + 4 * (j >> 3))
        tail[2] = tail[2] | s[j] >> 4 << (8 * (j & 3) + 2 * (j >> 2))
        scales[j] = d * F(s[j] - 32)


@inline
def final(x: npt.NDArray[np.float32], at: int, j: int, lane: int, scales: Vector, searched: Vector) -> Vector:
    """Codes 0..7 of one sub-block; those of the search if its scale rounded to zero."""
    scale = scales[j, lane]
    if scale == 0:
        n = numbers(CODE)
        nibbles = where(n < 8, CODE(searched[2 * j, lane]), CODE(searched[2 * j + 1, lane]))
        return lshr(nibbles, 4 * (n & 7)) & 7
    return unsigned_code(load(ROW, x, 256 * at + 16 * j) / scale, 4)


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    scales = scratch(ROW, 1)
    n = numbers(CODE)
    for at in range(out.size // 256):
        d = from_half(spread_u16(CODE, data, 110 * at + 108))
        low = where((n & 4) == 0, spread(CODE, data, 110 * at + 96), spread(CODE, data, 110 * at + 100))
        low = lshr(low, 8 * (n & 3) + 4 * (n >> 3)) & 15
        high = lshr(spread(CODE, data, 110 * at + 104), 8 * (n & 3) + 2 * (n >> 2)) & 3
        scales[0] = d * ROW((low | high << 4) - 32)
        for column in (0, 1):
            third = load_u8(CODE, data, 110 * at + 16 * column)
            for half in (0, 1):
                pairs = load_u8(CODE, data, 110 * at + 32 + 32 * half + 16 * column)
                for k in range(4):
                    j = 8 * half + 2 * k + column
                    c = (pairs >> 2 * k & 3) + (third >> 4 * half + k & 1) * 4 - 4
                    store(out, 256 * at + 16 * j, scales[0, j] * ROW(c))
