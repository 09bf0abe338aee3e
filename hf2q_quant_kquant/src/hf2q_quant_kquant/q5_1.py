"""Q5_1: 32 weights in 24 bytes: a float16 scale d and minimum m, 32 fifth bits, 16 bytes of codes.

A weight is d * code + m; m is the lowest weight, and the highest has code 31. Byte k holds the low four bits of
weight k in its low and those of weight k + 16 in its high half; bit k of the 32-bit word before them is bit 4 of the
code of weight k.
Layout: block_q5_1 of ggml/src/ggml-common.h; bytes: quantize_row_q5_1_ref and quantize_row_q5_1_impl of ggml-quants.c.
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
from hf2q_quant_kquant.lines import code, fit_line, grids
from hf2q_quant_kquant.parts import F, I, span_over

ROW, CODE = F32(16), I32(16)
GRIDS = grids(-0.9, 0.05, 36, 31)


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 32 * 24), with importance (columns,) or None."""
    if importance is None:
        _encode(x, out)
    else:
        _encode_weighted(x, out, importance, variances(x))


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 32 * 24) into out (rows, columns)."""
    _decode(data, out)


@kernel(reads("float32"), writes("uint8"))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8]) -> None:
    last = x.size // 32 - 1
    block, inverse, low, head, mask = scratch(F, 32), scratch(F, 1), scratch(F, 1), scratch(I, 1), scratch(I, 1)
    for first in range(0, last + 1, WIDE):  # one block per lane; spare lanes repeat the last one
        columns(block, 32, x, 0, 32, first, last)
        d, inverse[0], low[0], mask[0] = span_over(block, 31)
        head[0] = to_half(d) | to_half(low[0]) << 16
        for lane in range(WIDE):
            at = min(first + lane, last)
            put32(out, 24 * at, head[0, lane])
            a = CODE((load(ROW, x, 32 * at) - low[0, lane]) * inverse[0, lane] + 0.5) & mask[0, lane]
            b = CODE((load(ROW, x, 32 * at + 16) - low[0, lane]) * inverse[0, lane] + 0.5) & mask[0, lane]
            put32(out, 24 * at + 4, bits(a > 15) | bits(b > 15) << 16)
            store_u8(out, 24 * at + 8, a & 15 | (b & 15) << 4)


@kernel(reads("float32"), writes("uint8"), reads("float32", 1), reads("float32", 1))
def _encode_weighted(
    x: npt.NDArray[np.float32],
    out: npt.NDArray[np.uint8],
    importance: npt.NDArray[np.float32],
    variances: npt.NDArray[np.float32],
) -> None:
    last = x.size // 32 - 1
    block, w, codes, inverse, origin = scratch(F, 32), scratch(F, 32), scratch(F, 32), scratch(F, 1), scratch(F, 1)
    head = scratch(I, 1)
    for first in range(0, last + 1, WIDE):
        columns(block, 32, x, 0, 32, first, last)
        weigh_by_row(w, block, importance, variances, first, last)
        d, low, inverse[0], origin[0], _ = fit_line(block, w, codes, 32, 31, False, GRIDS)
        head[0] = to_half(d) | to_half(low) << 16
        for lane in range(WIDE):
            at = min(first + lane, last)
            put32(out, 24 * at, head[0, lane])
            a = code((load(ROW, x, 32 * at) - origin[0, lane]) * inverse[0, lane], 31) & 31
            b = code((load(ROW, x, 32 * at + 16) - origin[0, lane]) * inverse[0, lane], 31) & 31
            put32(out, 24 * at + 4, bits(a > 15) | bits(b > 15) << 16)
            store_u8(out, 24 * at + 8, a & 15 | (b & 15) << 4)


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    for at in range(out.size // 32):
        d, m = from_half(spread_u16(CODE, data, 24 * at)), from_half(spread_u16(CODE, data, 24 * at + 2))
        fifth = lshr(spread(CODE, data, 24 * at + 4), numbers(CODE))
        codes = load_u8(CODE, data, 24 * at + 8)
        store(out, 32 * at, d * ROW(codes & 15 | (fifth & 1) << 4) + m)
        store(out, 32 * at + 16, d * ROW(codes >> 4 | (lshr(fifth, 16) & 1) << 4) + m)
