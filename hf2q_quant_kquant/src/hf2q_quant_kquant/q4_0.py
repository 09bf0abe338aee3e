"""Q4_0: 32 weights in 18 bytes: a float16 scale d, then 16 bytes of codes; a weight is d * (code - 8).

Byte k holds the code of weight k in its low and that of weight k + 16 in its high half. The scale is the weight of
largest magnitude, with its sign, over -8, so that this weight is exact.
Layout: block_q4_0 of ggml/src/ggml-common.h; bytes: quantize_row_q4_0_ref and quantize_row_q4_0_impl of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import (
    F32,
    I32,
    WIDE,
    columns,
    from_half,
    kernel,
    load,
    load_u8,
    put16,
    reads,
    scratch,
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
GRIDS = grids(8)


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 32 * 18), with importance (columns,) or None."""
    if importance is None:
        _encode(x, out)
    else:
        _encode_weighted(x, out, importance, variances(x))


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 32 * 18) into out (rows, columns)."""
    _decode(data, out)


@kernel(reads("float32"), writes("uint8"))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8]) -> None:
    last = x.size // 32 - 1
    block, inverse, half, mask = scratch(F, 32), scratch(F, 1), scratch(I, 1), scratch(I, 1)
    for first in range(0, last + 1, WIDE):  # one block per lane; spare lanes repeat the last one
        columns(block, 32, x, 0, 32, first, last)
        d, inverse[0], mask[0] = largest_over(block, -8)
        half[0] = to_half(d)
        for lane in range(WIDE):
            at = min(first + lane, last)
            put16(out, 18 * at, half[0, lane])
            a = CODE(load(ROW, x, 32 * at) * inverse[0, lane] + 8.5)
            b = CODE(load(ROW, x, 32 * at + 16) * inverse[0, lane] + 8.5)
            store_u8(out, 18 * at + 2, (min(a, 15) | min(b, 15) << 4) & mask[0, lane])


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
        d, inverse[0], offset[0] = fit_scale(block, w, wx, 32, 8, True, GRIDS)
        half[0] = to_half(d)
        for lane in range(WIDE):
            at = min(first + lane, last)
            put16(out, 18 * at, half[0, lane])
            a = unsigned_code(load(ROW, x, 32 * at) * inverse[0, lane] + offset[0, lane], 8)
            b = unsigned_code(load(ROW, x, 32 * at + 16) * inverse[0, lane] + offset[0, lane], 8)
            store_u8(out, 18 * at + 2, a | b << 4)


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    for at in range(out.size // 32):
        d = from_half(spread_u16(CODE, data, 18 * at))
        codes = load_u8(CODE, data, 18 * at + 2)
        store(out, 32 * at, d * ROW((codes & 15) - 8))
        store(out, 32 * at + 16, d * ROW((codes >> 4) - 8))
