"""Q4_K: 256 weights in 144 bytes.

Eight sub-blocks of 32 weights; a weight is d * scale * code - dmin * minimum, with a 4-bit code and a 6-bit scale and
minimum per sub-block. Bytes: d and dmin as float16, 12 bytes of packed scales and minimums, 128 bytes of codes, of
which 32 hold an even sub-block in their low and the odd one after it in their high halves.
Layout: block_q4_K of ggml/src/ggml-common.h; bytes: quantize_row_q4_K_ref and make_qkx2_quants of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import (
    F32,
    I32,
    WIDE,
    Vector,
    as_float,
    as_int,
    columns,
    every,
    from_half,
    inline,
    kernel,
    load,
    load_u8,
    put32,
    reads,
    scratch,
    spread_u16,
    sqrt,
    store,
    store_u8,
    to_half,
    where,
    writes,
)
from hf2q_quant_kquant.parts import MAGIC, F, I, no_importance, six_bits, unpack_six_bits

ROW, CODE = F32(32), I32(32)
FOUR, FOUR_BITS = F32(4), I32(4)

GRIDS = np.float32(-1) + np.float32(0.1) * np.arange(21, dtype=np.float32) + np.float32(15)
"""Numerators of the trial scales: rmin + rdelta * step + nmax, rounded as the reference rounds them."""


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 256 * 144). Errors: EncodeError if importance is given."""
    no_importance("Q4_K", importance)
    _encode(x, out)


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 256 * 144) into out (rows, columns)."""
    _decode(data, out)


@inline
def code(v: Vector) -> Vector:
    """Nearest integer clamped to 0..15, plus 0x400000. Beyond +-2**22 it wraps before the clamp, as the reference."""
    return min(max(as_int(v + MAGIC) & 0x7FFFFF, 0x400000), 0x40000F)


@inline
def level(v: Vector, tame: bool) -> Vector:
    """The code as a float; `tame` promises that no lane wraps."""
    if tame:
        return as_float(min(max(as_int(v + MAGIC), 0x4B400000), 0x4B40000F)) - MAGIC
    return as_float(code(v) | 0x4B000000) - MAGIC


@inline
def assign(x: Vector, w: Vector, q: Vector, low: Vector, inverse: Vector, tame: bool) -> tuple[Vector, Vector, Vector]:
    """Codes q of the blocks for one grid, and the sums that a weighted line fit through them needs."""
    sl = sll = slx = F(0)
    for k in range(32):
        c = level(inverse * (x[k] - low), tame)
        q[k] = c
        wc = w[k] * c
        sl += wc
        sll += wc * c
        slx += wc * x[k]
    return sl, sll, slx


@inline
def error(x: Vector, w: Vector, q: Vector, scale: Vector, low: Vector) -> Vector:
    """Weighted squared error of the codes q."""
    e = F(0)
    for k in range(32):
        d = scale * q[k] + low - x[k]
        e += w[k] * (d * d)
    return e


@inline
def search(x: Vector, w: Vector, q: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    """Best (scale, low) per lane, and the (inverse, origin) whose codes belong to it; w and q are working memory."""
    square = F(0)
    for k in range(32):
        square += x[k] * x[k]
    mean = sqrt(square * 0.03125)
    bottom = top = x[0]
    w[0] = mean + abs(x[0])
    weight, moment = w[0], w[0] * x[0]
    for k in range(1, 32):
        w[k] = mean + abs(x[k])
        bottom, top = min(bottom, x[k]), max(top, x[k])
        weight += w[k]
        moment += w[k] * x[k]
    low = origin = where(bottom > 0, F(0), bottom)
    inverse = 15 / (top - low)
    scale = 1 / inverse
    assign(x, w, q, low, inverse, False)
    best = error(x, w, q, scale, low)
    for k in range(21):
        span = top - low
        trial = GRIDS[k] / span
        flat = span == 0
        # with all products below 2**22 nothing wraps, and the clamp is three instructions shorter
        if every((abs(trial * span) <= 4194303) & (abs(trial * (bottom - low)) <= 4194303) | flat):
            sl, sll, slx = assign(x, w, q, low, where(flat, F(0), trial), True)
        else:
            sl, sll, slx = assign(x, w, q, low, trial, False)
        det = weight * sll - sl * sl
        s, m = (weight * slx - moment * sl) / det, (sll * moment - sl * slx) / det
        s, m = where(m > 0, slx / sll, s), where(m > 0, F(0), m)
        e = error(x, w, q, s, m)
        better = (det > 0) & (e < best)
        best, scale = where(better, e, best), where(better, s, scale)
        inverse, origin = where(better, trial, inverse), where(better, low, origin)
        low = where(better, m, low)  # the reference's next trial starts from this minimum
    return scale, low, inverse, origin


@kernel(reads("float32"), writes("uint8"))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8]) -> None:
    last = x.size // 256 - 1
    block, weights, codes = scratch(F, 32), scratch(F, 32), scratch(F, 32)
    scales, minimums, inverses, origins = scratch(F, 8), scratch(F, 8), scratch(F, 8), scratch(F, 8)
    head = scratch(I, 4)
    for first in range(0, last + 1, WIDE):  # one super-block per lane; spare lanes repeat the last one
        biggest = deepest = F(0)
        for j in range(8):
            columns(block, 32, x, 32 * j, 256, first, last)
            scales[j], low, inverses[j], origins[j] = search(block, weights, codes)
            minimums[j] = -low
            biggest, deepest = max(biggest, scales[j]), max(deepest, minimums[j])
        pack_head(head, scales, minimums, biggest, deepest)
        for lane in range(WIDE):
            at = min(first + lane, last)
            for k in range(4):
                put32(out, 144 * at + 4 * k, head[k, lane])
            for j in range(0, 8, 2):
                a = final(load(ROW, x, 256 * at + 32 * j), j, lane, scales, minimums, inverses, origins)
                b = final(load(ROW, x, 256 * at + 32 * j + 32), j + 1, lane, scales, minimums, inverses, origins)
                store_u8(out, 144 * at + 16 + 16 * j, a | b << 4)


@inline
def pack_head(head: Vector, scales: Vector, minimums: Vector, biggest: Vector, deepest: Vector) -> None:
    """The first 16 bytes of the blocks as four words; scales and minimums become what a decoder will make of them."""
    up = where(biggest > 0, 63 / biggest, 0)
    down = where(deepest > 0, 63 / deepest, 0)
    d, dmin = to_half(biggest / 63), to_half(deepest / 63)
    low_scales = low_minimums = nibbles = I(0)
    for j in range(4):
        s, t = six_bits(up * scales[j]), six_bits(up * scales[j + 4])
        m, n = six_bits(down * minimums[j]), six_bits(down * minimums[j + 4])
        low_scales |= (s | t >> 4 << 6) << 8 * j
        low_minimums |= (m | n >> 4 << 6) << 8 * j
        nibbles |= (t & 15 | (n & 15) << 4) << 8 * j
        scales[j], scales[j + 4] = from_half(d) * F(s), from_half(d) * F(t)
        minimums[j], minimums[j + 4] = from_half(dmin) * F(m), from_half(dmin) * F(n)
    head[0], head[1], head[2], head[3] = d | dmin << 16, low_scales, low_minimums, nibbles


@inline
def final(x: Vector, j: int, lane: int, scales: Vector, minimums: Vector, inverses: Vector, origins: Vector) -> Vector:
    """Codes of consecutive weights; those of the search if the scale rounded to zero."""
    if scales[j, lane] == 0:
        v = inverses[j, lane] * (x - origins[j, lane])
    else:
        v = (x + minimums[j, lane]) / scales[j, lane]
    return code(v) & 15


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    scales, minimums = scratch(FOUR, 2), scratch(FOUR, 2)
    for at in range(out.size // 256):
        d = from_half(spread_u16(FOUR_BITS, data, 144 * at))
        dmin = from_half(spread_u16(FOUR_BITS, data, 144 * at + 2))
        s, t, m, n = unpack_six_bits(data, 144 * at + 4)
        scales[0], scales[1] = d * FOUR(s), d * FOUR(t)
        minimums[0], minimums[1] = dmin * FOUR(m), dmin * FOUR(n)
        for j in range(0, 8, 2):
            codes = load_u8(CODE, data, 144 * at + 16 + 16 * j)
            k, lane = j >> 2, j & 3
            store(out, 256 * at + 32 * j, ROW(codes & 15) * scales[k, lane] - minimums[k, lane])
            store(out, 256 * at + 32 * j + 32, ROW(codes >> 4) * scales[k, lane + 1] - minimums[k, lane + 1])
