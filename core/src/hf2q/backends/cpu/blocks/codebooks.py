"""IQ4_NL, IQ4_XS and MXFP4 (four-bit codes that stand for signed bytes) and the ternary TQ1_0 and TQ2_0.

Layouts: block_iq4_nl and following of llama.cpp, ggml/src/ggml-common.h, which also has the values (kvalues_iq4nl,
kvalues_mxfp4, the latter doubled); dequantize_row_tq1_0 of ggml/src/ggml-quants.c.
"""

from __future__ import annotations

from hf2q.backends.cpu.blocks.block import Block, F, I, half_at
from hf2q.backends.cpu.blocks.legacy import nibble, one_scale
from hf2q.backends.cpu.bytes import WIDE_OFFSET, look_up
from hf2q.simd import Vector, as_float, inline, load, load_u8, load_u16, lshr, where

NL_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

nl_value = look_up(tuple(v + WIDE_OFFSET for v in NL_VALUES))
fp4_value = look_up(tuple(v + WIDE_OFFSET for v in FP4_VALUES))

POWERS_OF_3 = (1, 3, 9, 27, 81)


@inline
def iq4_nl(p: int, s: int, j: int, table: int) -> Vector:
    return nl_value(nibble(p, 2, j))


@inline
def iq4_xs_scales(p: int, scales: Vector, minimums: Vector) -> None:
    d, high, low = half_at(p, 0), load_u16(I, p, 32), load(I, p, 64)
    for s in range(8):
        scales[s] = d * F((lshr(low, 4 * s) & 15 | (lshr(high, 2 * s) & 3) << 4) - 32)


@inline
def iq4_xs(p: int, s: int, j: int, table: int) -> Vector:
    return nl_value(nibble(p, 8 + 16 * s, j))


@inline
def mxfp4_scales(p: int, scales: Vector, minimums: Vector) -> None:
    e = load_u8(I, p, 0)  # 2^(e - 127), halved because the values are doubled; below 2^-126 as a denormal number
    scales[0] = as_float(where(e < 2, (e + 1) << 21, (e - 1) << 23))


@inline
def mxfp4(p: int, s: int, j: int, table: int) -> Vector:
    return fp4_value(nibble(p, 1, j))


@inline
def eight_alike_52(p: int, scales: Vector, minimums: Vector) -> None:
    for s in range(8):
        scales[s] = half_at(p, 52)


@inline
def eight_alike_64(p: int, scales: Vector, minimums: Vector) -> None:
    for s in range(8):
        scales[s] = half_at(p, 64)


@inline
def digit(words: Vector, n: int) -> Vector:
    """Base-3 digit n, from the top, of each byte, which holds five as a fraction of 256."""
    even, odd = words & 0x00FF00FF, lshr(words, 8) & 0x00FF00FF
    even = (even * POWERS_OF_3[n] & 0x00FF00FF) * 3
    odd = (odd * POWERS_OF_3[n] & 0x00FF00FF) * 3
    return lshr(even, 8) & 0x00FF00FF | odd & -0x00FF0100


@inline
def tq1_0(p: int, s: int, j: int, table: int) -> Vector:
    # five rows of 32 weights in 32 bytes, five of 16 in 16, four of 4 in 4
    if s < 5:
        word, n = j, s
    elif s < 7 or j < 4:
        word, n = 8 + (j & 3), 2 * (s - 5) + (j >> 2)
    else:
        word, n = 12, j - 4
    return digit(load(I, p, 64 * word), n)


@inline
def tq2_0(p: int, s: int, j: int, table: int) -> Vector:
    return lshr(load(I, p, 64 * (8 * (s >> 2) + j)), 2 * (s & 3)) & 0x03030303


BLOCKS = (
    Block(qtype="IQ4_NL", size=32, bytes=18, group=32, units=((2, 1), (4, 4)), top=0, scales=one_scale, code=iq4_nl),
    Block(
        qtype="IQ4_XS",
        size=256,
        bytes=136,
        group=32,
        units=((2, 2), (4, 33)),
        top=0,
        scales=iq4_xs_scales,
        code=iq4_xs,
    ),
    Block(qtype="MXFP4", size=32, bytes=17, group=32, units=((1, 1), (4, 4)), top=0, scales=mxfp4_scales, code=mxfp4),
    Block(
        qtype="TQ1_0",
        size=256,
        bytes=54,
        group=32,
        units=((4, 13), (2, 1)),
        top=2,
        offset=1,
        scales=eight_alike_52,
        code=tq1_0,
    ),
    Block(
        qtype="TQ2_0",
        size=256,
        bytes=66,
        group=32,
        units=((4, 16), (2, 1)),
        top=3,
        offset=1,
        scales=eight_alike_64,
        code=tq2_0,
    ),
)
