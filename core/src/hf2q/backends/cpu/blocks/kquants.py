"""Q2_K to Q6_K: super-blocks of 256 whose sub-blocks have integer scales.

Layouts: block_q2_K and following of llama.cpp, ggml/src/ggml-common.h; where codes lie: dequantize_row_q2_K and
following of ggml/src/ggml-quants.c.
"""

from __future__ import annotations

from hf2q.backends.cpu.blocks.block import Block, F, I, byte_of, half_at
from hf2q.simd import Vector, inline, load, lshr


@inline
def q2_k_scales(p: int, scales: Vector, minimums: Vector) -> None:
    d, dmin = half_at(p, 80), half_at(p, 82)
    for word in range(4):
        both = load(I, p, 64 * word)
        for k in range(4):
            scales[4 * word + k] = d * F(lshr(both, 8 * k) & 15)
            minimums[4 * word + k] = dmin * F(lshr(both, 8 * k + 4) & 15)


@inline
def pair(p: int, at: int, s: int, j: int) -> Vector:
    """Two-bit codes of sub-block s of 16: in each half of 128 weights, four rows of 32 share the bits of 32 bytes."""
    return lshr(load(I, p, 16 * at + 64 * (8 * (s >> 3) + 4 * (s & 1) + j)), s & 6) & 0x03030303


@inline
def q2_k(p: int, s: int, j: int, table: int) -> Vector:
    return pair(p, 16, s, j)


@inline
def q3_k_scales(p: int, scales: Vector, minimums: Vector) -> None:
    d = half_at(p, 108)
    top = load(I, p, 16 * 104)
    for s in range(16):
        low = lshr(load(I, p, 16 * 96 + 16 * (s & 4)), 8 * (s & 3) + 4 * (s >> 3)) & 15
        scales[s] = d * F((low | (lshr(top, 8 * (s & 3) + 2 * (s >> 2)) & 3) << 4) - 32)


@inline
def q3_k(p: int, s: int, j: int, table: int) -> Vector:
    third = lshr(load(I, p, 64 * (4 * (s & 1) + j)), s >> 1) & 0x01010101
    return pair(p, 32, s, j) | third << 2


@inline
def six_bits(p: int, scales: Vector, minimums: Vector) -> None:
    """Scales and minimums of Q4_K and Q5_K: twelve bytes after d and dmin, eight times twice six bits.

    Of the first two words, the low six bits of byte k are scale and minimum of sub-block k < 4, the upper two those of
    sub-block 4 + k, whose lower four are the halves of byte k of the third.
    """
    d, dmin = half_at(p, 0), half_at(p, 2)
    a, b, c = load(I, p, 64), load(I, p, 128), load(I, p, 192)
    a_high, b_high = lshr(a, 2) & 0x30303030, lshr(b, 2) & 0x30303030
    more, more_min = c & 0x0F0F0F0F | a_high, lshr(c, 4) & 0x0F0F0F0F | b_high
    for k in range(4):
        scales[k] = d * F(lshr(a, 8 * k) & 63)
        minimums[k] = dmin * F(lshr(b, 8 * k) & 63)
        scales[4 + k] = d * F(byte_of(more, k))
        minimums[4 + k] = dmin * F(byte_of(more_min, k))


@inline
def nibble(p: int, at: int, s: int, j: int) -> Vector:
    """Sub-blocks 2c and 2c + 1 of 32 share the halves of 32 bytes."""
    return lshr(load(I, p, 16 * at + 64 * (8 * (s >> 1) + j)), 4 * (s & 1)) & 0x0F0F0F0F


@inline
def q4_k(p: int, s: int, j: int, table: int) -> Vector:
    return nibble(p, 16, s, j)


@inline
def q5_k(p: int, s: int, j: int, table: int) -> Vector:
    return nibble(p, 48, s, j) | (lshr(load(I, p, 16 * 16 + 64 * j), s) & 0x01010101) << 4


@inline
def q6_k_scales(p: int, scales: Vector, minimums: Vector) -> None:
    d = half_at(p, 208)
    for word in range(4):
        four = load(I, p, 16 * 192 + 64 * word)
        for k in range(4):
            scales[4 * word + k] = d * F(four << (24 - 8 * k) >> 24)


@inline
def q6_k(p: int, s: int, j: int, table: int) -> Vector:
    half, row, word = s >> 3, (s >> 1) & 3, 4 * (s & 1) + j
    low = lshr(load(I, p, 64 * (16 * half + 8 * (row & 1) + word)), 4 * (row >> 1)) & 0x0F0F0F0F
    high = lshr(load(I, p, 16 * 128 + 64 * (8 * half + word)), 2 * row) & 0x03030303
    return low | high << 4


BLOCKS = (
    Block(
        qtype="Q2_K",
        size=256,
        bytes=84,
        group=16,
        units=((4, 20), (2, 2)),
        top=3,
        minimums=True,
        scales=q2_k_scales,
        code=q2_k,
    ),
    Block(
        qtype="Q3_K",
        size=256,
        bytes=110,
        group=16,
        units=((4, 27), (2, 1)),
        top=7,
        offset=4,
        scales=q3_k_scales,
        code=q3_k,
    ),
    Block(
        qtype="Q4_K",
        size=256,
        bytes=144,
        group=32,
        units=((2, 2), (4, 35)),
        top=15,
        minimums=True,
        share=2,
        scales=six_bits,
        code=q4_k,
    ),
    Block(
        qtype="Q5_K",
        size=256,
        bytes=176,
        group=32,
        units=((2, 2), (4, 43)),
        top=31,
        minimums=True,
        share=2,
        scales=six_bits,
        code=q5_k,
    ),
    Block(
        qtype="Q6_K",
        size=256,
        bytes=210,
        group=16,
        units=((4, 52), (2, 1)),
        top=63,
        offset=32,
        scales=q6_k_scales,
        code=q6_k,
    ),
)
