"""What Q4_K and Q5_K have in common: a head of 16 bytes with two float16 scales and packed six-bit numbers, and the
choice of these numbers for a super-block.

Bytes 0-3 are d and dmin; the 12 bytes after them hold s = scales and m = minimums of sub-blocks 0 to 7:

    byte j, j < 4:      s[j] in bits 0-5, the high two bits of s[j + 4] in bits 6-7
    byte 4 + j:         m[j] in bits 0-5, the high two bits of m[j + 4] in bits 6-7
    byte 8 + j:         the low four bits of s[j + 4] in bits 0-3, those of m[j + 4] in bits 4-7

Source: get_scale_min_k4, quantize_row_q4_K_ref and quantize_row_q4_K_impl of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import (
    F32,
    I32,
    Vector,
    columns,
    from_half,
    inline,
    load,
    load_u8,
    put32,
    scratch,
    spread_u16,
    sqrt,
    to_half,
)
from hf2q_quant_kquant import positive
from hf2q_quant_kquant.importance import place, squares, weigh
from hf2q_quant_kquant.lines import Found, code, fit_line
from hf2q_quant_kquant.parts import F, I
from hf2q_quant_kquant.positive import by_maximum, fit_positive

ROW = F32(32)
FOUR, FOUR_BITS = F32(4), I32(4)
POSITIVE_GRIDS = positive.grids(63)


@inline
def average_weights(x: Vector, w: Vector) -> None:
    """w = the root mean square of the sub-block plus |x|: what a weight's error counts where no importance is known."""
    square = F(0)
    for k in range(32):
        square += x[k] * x[k]
    mean = sqrt(square * 0.03125)
    for k in range(32):
        w[k] = mean + abs(x[k])


@inline
def search(
    x: npt.NDArray[np.float32],
    importance: npt.NDArray[np.float32],
    first: int,
    last: int,
    top: int,
    limit: int,
    trials: npt.NDArray[np.float32],
    found: Found,
    s: Vector,
    m: Vector,
) -> tuple[Vector, Vector]:
    """d and dmin of WIDE super-blocks; `found` for each of their sub-blocks j; the integers s[j] and m[j], at most
    `limit`, for its scale and minimum."""
    scales, minimums, inverses, origins = found
    block, weights, codes = scratch(F, 32), scratch(F, 32), scratch(F, 32)
    places, sums = scratch(I, 1), scratch(F, 8)
    weighted = importance.size > 0
    variance = F(0)
    if weighted:
        place(places, importance, 256, first, last)
        variance = squares(block, x, first, last) * 2 / 256
    for j in range(8):
        columns(block, 32, x, 32 * j, 256, first, last)
        if weighted:
            weigh(weights, block, 32, importance, places, 32 * j, variance)
        else:
            average_weights(block, weights)
        scales[j], low, inverses[j], origins[j], sums[j] = fit_line(block, weights, codes, 32, top, False, trials)
        minimums[j] = -low
    if weighted:
        d = fit_positive(scales, sums, s, 8, 63, POSITIVE_GRIDS)
        dmin = fit_positive(minimums, sums, m, 8, 63, POSITIVE_GRIDS)
    else:
        d, dmin, limit = by_maximum(scales, s, 8, 63), by_maximum(minimums, m, 8, 63), 63
    for j in range(8):
        s[j], m[j] = min(s[j], limit), min(m[j], limit)
    return d, dmin


@inline
def pack_head(head: Vector, d: Vector, dmin: Vector, s: Vector, m: Vector, found: Found) -> None:
    """The first 16 bytes of the blocks as four words; scales and minimums become what a decoder will make of them."""
    scales, minimums, _, _ = found
    half_d, half_dmin = to_half(d), to_half(dmin)
    d, dmin = from_half(half_d), from_half(half_dmin)
    head[0], head[1], head[2], head[3] = half_d | half_dmin << 16, I(0), I(0), I(0)
    for j in range(4):
        a, b = (s[j] | s[j + 4] >> 4 << 6) & 255, (m[j] | m[j + 4] >> 4 << 6) & 255
        head[1] |= a << 8 * j
        head[2] |= b << 8 * j
        head[3] |= (s[j + 4] & 15 | (m[j + 4] & 15) << 4) << 8 * j
        scales[j], scales[j + 4] = d * F(a & 63), d * F(s[j + 4] & 15 | a >> 6 << 4)
        minimums[j], minimums[j + 4] = dmin * F(b & 63), dmin * F(m[j + 4] & 15 | b >> 6 << 4)


@inline
def put_head(out: npt.NDArray[np.uint8], at: int, head: Vector, lane: int) -> None:
    """Write the head of the block in `lane` to byte `at`."""
    for k in range(4):
        put32(out, at + 4 * k, head[k, lane])


@inline
def final(x: npt.NDArray[np.float32], at: int, j: int, lane: int, top: int, found: Found) -> Vector:
    """Codes 0..top of sub-block j, which begins at element `at`; those of the search if its scale rounded to zero."""
    scales, minimums, inverses, origins = found
    v = load(ROW, x, at)
    if scales[j, lane] == 0:
        v = inverses[j, lane] * (v - origins[j, lane])
    else:
        v = (v + minimums[j, lane]) / scales[j, lane]
    return code(v, top) & 31


@inline
def unpack_head(data: npt.NDArray[np.uint8], at: int, scales: Vector, minimums: Vector) -> None:
    """d * scale and dmin * minimum of the block at byte `at`: s[k, lane] belongs to sub-block 4 * k + lane."""
    d = from_half(spread_u16(FOUR_BITS, data, at))
    dmin = from_half(spread_u16(FOUR_BITS, data, at + 2))
    a, b, c = (load_u8(FOUR_BITS, data, at + 4), load_u8(FOUR_BITS, data, at + 8), load_u8(FOUR_BITS, data, at + 12))
    scales[0], scales[1] = d * FOUR(a & 63), d * FOUR(c & 15 | a >> 6 << 4)
    minimums[0], minimums[1] = dmin * FOUR(b & 63), dmin * FOUR(c >> 4 | b >> 6 << 4)
