"""Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32 with one scale.

Layouts: block_q4_0 and following of llama.cpp, ggml/src/ggml-common.h.
"""

from __future__ import annotations

from hf2q.backends.cpu.blocks.block import Block, I, bits_to_bytes, half_at
from hf2q.backends.cpu.bytes import WIDE_FLIP
from hf2q.simd import Vector, inline, load, lshr


@inline
def one_scale(p: int, scales: Vector, minimums: Vector) -> None:
    scales[0] = half_at(p, 0)


@inline
def scale_and_minimum(p: int, scales: Vector, minimums: Vector) -> None:
    scales[0] = half_at(p, 0)
    minimums[0] = -half_at(p, 2)


@inline
def nibble(p: int, at: int, j: int) -> Vector:
    """Codes 4j to 4j + 3 of 16 bytes whose low halves come first."""
    return lshr(load(I, p, 16 * at + 64 * (j & 3)), 4 * (j >> 2)) & 0x0F0F0F0F


@inline
def fifth(p: int, at: int, j: int) -> Vector:
    """Their fifth bits, in place, from a word of 32."""
    return bits_to_bytes(lshr(load(I, p, 16 * at), 4 * j) & 15) << 4


@inline
def q4_0(p: int, s: int, j: int, table: int) -> Vector:
    return nibble(p, 2, j)


@inline
def q4_1(p: int, s: int, j: int, table: int) -> Vector:
    return nibble(p, 4, j)


@inline
def q5_0(p: int, s: int, j: int, table: int) -> Vector:
    return nibble(p, 6, j) | fifth(p, 2, j)


@inline
def q5_1(p: int, s: int, j: int, table: int) -> Vector:
    return nibble(p, 8, j) | fifth(p, 4, j)


@inline
def q8_0(p: int, s: int, j: int, table: int) -> Vector:
    return load(I, p, 32 + 64 * j) ^ WIDE_FLIP


BLOCKS = (
    Block(
        qtype="Q4_0",
        size=32,
        bytes=18,
        group=32,
        units=((2, 1), (4, 4)),
        top=15,
        offset=8,
        scales=one_scale,
        code=q4_0,
    ),
    Block(
        qtype="Q4_1",
        size=32,
        bytes=20,
        group=32,
        units=((2, 2), (4, 4)),
        top=15,
        minimums=True,
        scales=scale_and_minimum,
        code=q4_1,
    ),
    Block(
        qtype="Q5_0",
        size=32,
        bytes=22,
        group=32,
        units=((2, 1), (4, 5)),
        top=31,
        offset=16,
        scales=one_scale,
        code=q5_0,
    ),
    Block(
        qtype="Q5_1",
        size=32,
        bytes=24,
        group=32,
        units=((2, 2), (4, 5)),
        top=31,
        minimums=True,
        scales=scale_and_minimum,
        code=q5_1,
    ),
    Block(qtype="Q8_0", size=32, bytes=34, group=32, units=((2, 1), (4, 8)), top=0, scales=one_scale, code=q8_0),
)
