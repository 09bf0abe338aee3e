"""Q2_K: 256 weights in 84 bytes.

Sixteen sub-blocks of 16 weights; a weight is d * scale * code - dmin * minimum, with a 2-bit code and a 4-bit scale and
minimum per sub-block. Bytes: 16 of scales (low halves) and minimums (high halves), 64 of codes, d and dmin as float16.
In each half of 128 weights, taken as four rows of 32, the four rows share the bit pairs of 32 bytes.
Layout: block_q2_K of ggml/src/ggml-common.h; bytes: quantize_row_q2_K_ref and quantize_row_q2_K_impl of ggml-quants.c.
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
    put32,
    reads,
    scratch,
    spread_u16,
    store,
    store_u8,
    to_half,
    writes,
)
from hf2q_quant_kquant import positive
from hf2q_quant_kquant.importance import given, place, squares, weigh
from hf2q_quant_kquant.lines import Found, code, fit_line, grids
from hf2q_quant_kquant.parts import F, I
from hf2q_quant_kquant.positive import by_maximum, fit_positive

ROW, CODE = F32(16), I32(16)
GRIDS = grids(-0.5, 0.1, 15, 3)
WEIGHTED_GRIDS = grids(-0.9, 0.05, 36, 3)
POSITIVE_GRIDS = positive.grids(15)


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 256 * 84), with importance (columns,) or None."""
    _encode(x, out, given(importance))


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 256 * 84) into out (rows, columns)."""
    _decode(data, out)


@kernel(reads("float32"), writes("uint8"), reads("float32", 1))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32]) -> None:
    last = x.size // 256 - 1
    weighted = importance.size > 0
    trials = WEIGHTED_GRIDS if weighted else GRIDS
    block, weights, codes, wide = scratch(F, 16), scratch(F, 16), scratch(F, 16), scratch(F, 32)
    scales, minimums, inverses, origins = found = scratch(F, 16), scratch(F, 16), scratch(F, 16), scratch(F, 16)
    sums, places, bytes_, s, m = scratch(F, 16), scratch(I, 1), scratch(I, 5), scratch(I, 16), scratch(I, 16)
    for first in range(0, last + 1, WIDE):  # one super-block per lane; spare lanes repeat the last one
        variance = F(0)
        if weighted:
            place(places, importance, 256, first, last)
            variance = squares(wide, x, first, last) / 256
        for j in range(16):
            columns(block, 16, x, 16 * j, 256, first, last)
            if weighted:
                weigh(weights, block, 16, importance, places, 16 * j, variance)
            else:
                for k in range(16):
                    weights[k] = abs(block[k])
            fitted = fit_line(block, weights, codes, 16, 3, not weighted, trials)
            scales[j], low, inverses[j], origins[j], sums[j] = fitted
            minimums[j] = -low
        if weighted:
            d = fit_positive(scales, sums, s, 16, 15, POSITIVE_GRIDS)
            dmin = fit_positive(minimums, sums, m, 16, 15, POSITIVE_GRIDS)
        else:
            d, dmin = by_maximum(scales, s, 16, 15), by_maximum(minimums, m, 16, 15)
        pack(bytes_, d, dmin, s, m, scales, minimums)
        for lane in range(WIDE):
            at = min(first + lane, last)
            for word in range(4):
                put32(out, 84 * at + 4 * word, bytes_[word, lane])
            put32(out, 84 * at + 80, bytes_[4, lane])
            for j in (0, 1, 8, 9):  # the codes of sub-blocks j, j + 2, j + 4, j + 6 share bytes
                four = CODE(0)
                for k in range(4):
                    four |= final(x, at, j + 2 * k, lane, found) << 2 * k
                store_u8(out, 84 * at + 16 + 4 * (j & 8) + 16 * (j & 1), four)


@inline
def pack(bytes_: Vector, d: Vector, dmin: Vector, s: Vector, m: Vector, scales: Vector, minimums: Vector) -> None:
    """The 16 bytes of scales and minimums and the 4 of d and dmin as words; scales and minimums become what a decoder
    will make of them."""
    bytes_[4] = to_half(d) | to_half(dmin) << 16
    d, dmin = from_half(bytes_[4] & 0xFFFF), from_half(bytes_[4] >> 16 & 0xFFFF)
    for word in range(4):
        bytes_[word] = I(0)
        for k in range(4):
            j = 4 * word + k
            byte = (s[j] | m[j] << 4) & 255
            bytes_[word] |= byte << 8 * k
            scales[j], minimums[j] = d * F(byte & 15), dmin * F(byte >> 4)


@inline
def final(x: npt.NDArray[np.float32], at: int, j: int, lane: int, found: Found) -> Vector:
    """Codes of one sub-block; those of the search if its scale rounded to zero."""
    scales, minimums, inverses, origins = found
    v = load(ROW, x, 256 * at + 16 * j)
    if scales[j, lane] == 0:
        v = inverses[j, lane] * (v - origins[j, lane])
    else:
        v = (v + minimums[j, lane]) / scales[j, lane]
    return code(v, 3) & 3


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    scales, minimums = scratch(ROW, 1), scratch(ROW, 1)
    for at in range(out.size // 256):
        both = load_u8(CODE, data, 84 * at)
        scales[0] = from_half(spread_u16(CODE, data, 84 * at + 80)) * ROW(both & 15)
        minimums[0] = from_half(spread_u16(CODE, data, 84 * at + 82)) * ROW(both >> 4)
        for j in (0, 1, 8, 9):
            codes = load_u8(CODE, data, 84 * at + 16 + 4 * (j & 8) + 16 * (j & 1))
            for k in range(4):
                i = j + 2 * k
                store(out, 256 * at + 16 * i, ROW(codes >> 2 * k & 3) * scales[0, i] - minimums[0, i])
