"""Q4_K: 256 weights in 144 bytes.

Eight sub-blocks of 32 weights; a weight is d * scale * code - dmin * minimum, with a 4-bit code and a 6-bit scale and
minimum per sub-block. Bytes: the head of 16 (see `six_bits`), then 128 of codes, of which 32 hold an even sub-block in
their low and the odd one after it in their high halves.
Layout: block_q4_K of ggml/src/ggml-common.h; bytes: quantize_row_q4_K_ref and quantize_row_q4_K_impl of ggml-quants.c.
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
GRIDS = grids(-1, 0.1, 20, 15)
WEIGHTED_GRIDS = grids(-0.9, 0.05, 36, 15)


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 256 * 144), with importance (columns,) or None."""
    _encode(x, out, given(importance))


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 256 * 144) into out (rows, columns)."""
    _decode(data, out)


@kernel(reads("float32"), writes("uint8"), reads("float32", 1))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32]) -> None:
    last = x.size // 256 - 1
    trials = WEIGHTED_GRIDS if importance.size > 0 else GRIDS
    found = scratch(F, 8), scratch(F, 8), scratch(F, 8), scratch(F, 8)
    head, s, m = scratch(I, 4), scratch(I, 8), scratch(I, 8)
    for first in range(0, last + 1, WIDE):  # one super-block per lane; spare lanes repeat the last one
        # with importance, the reference keeps an integer that wrapped to a byte, up to 255; in Q5_K it cuts it at 63
        d, dmin = search(x, importance, first, last, 15, 255, trials, found, s, m)
        pack_head(head, d, dmin, s, m, found)
        for lane in range(WIDE):
            at = min(first + lane, last)
            put_head(out, 144 * at, head, lane)
            for j in range(0, 8, 2):
                a = final(x, 256 * at + 32 * j, j, lane, 15, found)
                b = final(x, 256 * at + 32 * j + 32, j + 1, lane, 15, found)
                store_u8(out, 144 * at + 16 + 16 * j, a | b << 4)


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    scales, minimums = scratch(FOUR, 2), scratch(FOUR, 2)
    for at in range(out.size // 256):
        unpack_head(data, 144 * at, scales, minimums)
        for j in range(0, 8, 2):
            codes = load_u8(CODE, data, 144 * at + 16 + 16 * j)
            k, lane = j >> 2, j & 3
            store(out, 256 * at + 32 * j, ROW(codes & 15) * scales[k, lane] - minimums[k, lane])
            store(out, 256 * at + 32 * j + 32, ROW(codes >> 4) * scales[k, lane + 1] - minimums[k, lane + 1])
