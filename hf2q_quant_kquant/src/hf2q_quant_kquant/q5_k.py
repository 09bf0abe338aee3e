"""Q5_K: 256 weights in 176 bytes.

Eight sub-blocks of 32 weights; a weight is d * scale * code - dmin * minimum, with a 5-bit code and a 6-bit scale and
minimum per sub-block. Bytes: the head of 16 (see `six_bits`); 32 of fifth bits, byte k holding in bit j that of weight
k of sub-block j; 128 of low halves, of which 32 hold an even sub-block in their low and the odd one after it in their
high four bits.
Layout: block_q5_K of ggml/src/ggml-common.h; bytes: quantize_row_q5_K_ref and quantize_row_q5_K_impl of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import F32, I32, WIDE, kernel, load_u8, reads, scratch, store, store_u8, writes
from hf2q_quant_kquant.importance import given
from hf2q_quant_kquant.lines import grids
from hf2q_quant_kquant.parts import F, I
from hf2q_quant_kquant.six_bits import FOUR, final, pack_head, put_head, search, unpack_head

ROW, CODE = F32(32), I32(32)
GRIDS = grids(-0.5, 0.1, 15, 31)
WEIGHTED_GRIDS = grids(-0.9, 0.05, 36, 31)


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 256 * 176), with importance (columns,) or None."""
    _encode(x, out, given(importance))


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 256 * 176) into out (rows, columns)."""
    _decode(data, out)


@kernel(reads("float32"), writes("uint8"), reads("float32", 1))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32]) -> None:
    last = x.size // 256 - 1
    trials = WEIGHTED_GRIDS if importance.size > 0 else GRIDS
    found = scratch(F, 8), scratch(F, 8), scratch(F, 8), scratch(F, 8)
    head, s, m = scratch(I, 4), scratch(I, 8), scratch(I, 8)
    for first in range(0, last + 1, WIDE):  # one super-block per lane; spare lanes repeat the last one
        d, dmin = search(x, importance, first, last, 31, 63, trials, found, s, m)
        pack_head(head, d, dmin, s, m, found)
        for lane in range(WIDE):
            at = min(first + lane, last)
            put_head(out, 176 * at, head, lane)
            fifth = CODE(0)
            for j in range(0, 8, 2):
                a = final(x, 256 * at + 32 * j, j, lane, 31, found)
                b = final(x, 256 * at + 32 * j + 32, j + 1, lane, 31, found)
                store_u8(out, 176 * at + 48 + 16 * j, a & 15 | (b & 15) << 4)
                fifth |= (a >> 4 | b >> 4 << 1) << j
            store_u8(out, 176 * at + 16, fifth)


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    scales, minimums = scratch(FOUR, 2), scratch(FOUR, 2)
    for at in range(out.size // 256):
        unpack_head(data, 176 * at, scales, minimums)
        fifth = load_u8(CODE, data, 176 * at + 16)
        for j in range(0, 8, 2):
            codes = load_u8(CODE, data, 176 * at + 48 + 16 * j)
            a, b = codes & 15 | (fifth >> j & 1) << 4, codes >> 4 | (fifth >> j + 1 & 1) << 4
            k, lane = j >> 2, j & 3
            store(out, 256 * at + 32 * j, ROW(a) * scales[k, lane] - minimums[k, lane])
            store(out, 256 * at + 32 * j + 32, ROW(b) * scales[k, lane + 1] - minimums[k, lane + 1])
