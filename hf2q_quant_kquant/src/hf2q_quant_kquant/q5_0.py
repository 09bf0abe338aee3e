"""Q5_0: 32 weights in 22 bytes: a float16 scale d, 32 fifth bits, 16 bytes of codes; a weight is d * (code - 16).

Byte k holds the low four bits of weight k in its low and those of weight k + 16 in its high half; bit k of the 32-bit
word before them is bit 4 of the code of weight k.
Layout: block_q5_0 of ggml/src/ggml-common.h; bytes: quantize_row_q5_0_ref and quantize_row_q5_0_impl of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import (
    F32,
    I32,
    WIDE,
    bits,
    columns,
    from_half,
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
    writes,
)
from hf2q_quant_kquant.importance import variances, weigh_by_row
from hf2q_quant_kquant.parts import F, I, largest_over
from hf2q_quant_kquant.scales import fit_scale, grids, unsigned_code

ROW, CODE = F32(16), I32(16)
GRIDS = grids(16)


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 32 * 22), with importance (columns,) or None."""
    if importance is None:
        _encode(x, out)
    else:
        _encode_weighted(x, out, importance, variances(x))


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 32 * 22) into out (rows, columns)."""
    _decode(data, out)


@kernel(reads("float32"), writes("uint8"))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8]) -> None:
    last = x.size // 32 - 1
    block, inverse, half, mask = scratch(F, 32), scratch(F, 1), scratch(I, 1), scratch(I, 1)
    for first in range(0, last + 1, WIDE):  # one block per lane; spare lanes repeat the last one
        columns(block, 32, x, 0, 32, first, last)
        d, inverse[0], mask[0] = largest_over(block, -16)
        half[0] = to_half(d)
        for lane in range(WIDE):
            at = min(first + lane, last)
            put16(out, 22 * at, half[0, lane])
            a = min(CODE(load(ROW, x, 32 * at) * inverse[0, lane] + 16.5), 31) & mask[0, lane]
            b = min(CODE(load(ROW, x, 32 * at + 16) * inverse[0, lane] + 16.5), 31) & mask[0, lane]
            put32(out, 22 * at + 2, bits(a > 15) | bits(b > 15) << 16)
            store_u8(out, 22 * at + 6, a & 15 | (b & 15) << 4)


@kernel(reads("float32"), writes("uint8"), reads("float32", 1), reads("float32", 1))
def _encode_weighted(
    x: npt.NDArray[np.float32],
    out: npt.NDArray[np.uint8],
    importance: npt.NDArray[np.float32],
    variances: npt.NDArray[np.float32],
) -> None:
    last = x.size // 32 - 1
    block, w, wx, inverse, offset = scratch(F, 32), scratch(F, 32), scratch(F, 32), scratch(F, 1), scratch(F, 1)
    half = scratch(I, 1)
    for first in range(0, last + 1, WIDE):
        columns(block, 32, x, 0, 32, first, last)
        weigh_by_row(w, block, importance, variances, first, last)
        d, inverse[0], offset[0] = fit_scale(block, w, wx, 32, 16, True, GRIDS)
        half[0] = to_half(d)
        for lane in range(WIDE):
            at = min(first + lane, last)
            put16(out, 22 * at, half[0, lane])
            a = unsigned_code(load(ROW, x, 32 * at) * inverse[0, lane] + offset[0, lane], 16)
            b = unsigned_code(load(ROW, x, 32 * at + 16) * inverse[0, lane] + offset[0, lane], 16)
            put32(out, 22 * at + 2, bits(a > 15) | bits(b > 15) << 16)
            store_u8(out, 22 * at + 6, a & 15 | (b & 15) << 4)


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    for at in range(out.size // 32):
        d = from_half(spread_u16(CODE, data, 22 * at))
        fifth = lshr(spread(CODE, data, 22 * at + 2), numbers(CODE))
        codes = load_u8(CODE, data, 22 * at + 6)
        store(out, 32 * at, d * ROW((codes & 15 | (fifth & 1) << 4) - 16))
        store(out, 32 * at + 16, d * ROW((codes >> 4 | (lshr(fifth, 16) & 1) << 4) - 16))
