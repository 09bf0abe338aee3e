"""IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S: four or eight weights in a row are a point of a grid of magnitudes, and signs.

The points come from the codec: a block with the scale 1, plus signs and chosen point numbers is decoded once
(`points_of`), so the grids are written down in one place only.
Layouts: block_iq2_xs and following of llama.cpp, ggml/src/ggml-common.h; dequantize_row_iq2_xs and following of
ggml/src/ggml-quants.c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.backends.cpu.blocks.block import Block, F, I, bits_to_bytes, half_at
from hf2q.backends.cpu.bytes import WIDE_FLIP
from hf2q.simd import Vector, inline, load, load_u8, load_u16, lshr
from hf2q.simd.codegen import Built, define, i32, i64, types

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.codec import QuantCodec


@define
def fetch(table: Any, index: Any) -> Built:
    """The int32 of each number in `index`, counted from address `table`."""

    def make(ctx: Any, b: Any, table: Any, index: Any) -> Any:
        found = index
        for k in range(index.type.count):
            at = b.sext(b.extract_element(index, i32(k)), i64)
            place = b.inttoptr(b.add(table, b.shl(at, i64(2))), i32.as_pointer())
            found = b.insert_element(found, b.load(place, align=4), i32(k))
        return found

    return index, (types.int64, index), make


@inline
def signed(magnitudes: Vector, signs: Vector, j: int) -> Vector:
    """Four magnitudes, none of them 0, with the signs of bits 0 to 3, or 4 to 7 for odd j."""
    minus = bits_to_bytes(lshr(signs, 4 * (j & 1)) & 15)
    return ((magnitudes ^ minus * 255) + minus) ^ WIDE_FLIP


@inline
def even_signs(seven: Vector) -> Vector:
    """Eight signs from seven, of which an even number is minus."""
    parity = seven ^ seven >> 4
    parity = parity ^ parity >> 2
    return seven | ((parity ^ parity >> 1) & 1) << 7


@inline
def iq2_xs_scales(p: int, scales: Vector, minimums: Vector) -> None:
    d = half_at(p, 0)
    for s in range(16):
        scales[s] = d * (F(lshr(load_u8(I, p, 16 * (66 + (s >> 1))), 4 * (s & 1)) & 15) + 0.5) * 0.25


@inline
def iq2_xs(p: int, s: int, j: int, table: int) -> Vector:
    word = load_u16(I, p, 16 * (2 + 4 * s + (j & 2)))
    return signed(fetch(table, 2 * (word & 511) + (j & 1)), even_signs(lshr(word, 9)), j)


@inline
def iq2_s_scales(p: int, scales: Vector, minimums: Vector) -> None:
    d = half_at(p, 0)
    for s in range(16):
        scales[s] = d * (F(lshr(load_u8(I, p, 16 * (74 + (s >> 1))), 4 * (s & 1)) & 15) + 0.5) * 0.25


@inline
def iq2_s(p: int, s: int, j: int, table: int) -> Vector:
    g = 2 * s + (j >> 1)
    high = lshr(load_u8(I, p, 16 * (66 + (g >> 2))), 2 * (g & 3)) & 3
    point = load_u8(I, p, 16 * (2 + g)) | high << 8
    return signed(fetch(table, 2 * point + (j & 1)), load_u8(I, p, 16 * (34 + g)), j)


@inline
def iq3_xxs_scales(p: int, scales: Vector, minimums: Vector) -> None:
    d = half_at(p, 0)
    for s in range(8):
        scales[s] = d * (F(lshr(load(I, p, 16 * (66 + 4 * s)), 28)) + 0.5) * 0.5


@inline
def iq3_xxs(p: int, s: int, j: int, table: int) -> Vector:
    seven = lshr(load(I, p, 16 * (66 + 4 * s)), 7 * (j >> 1)) & 127
    return signed(fetch(table, load_u8(I, p, 16 * (2 + 8 * s + j))), even_signs(seven), j)


@inline
def iq3_s_scales(p: int, scales: Vector, minimums: Vector) -> None:
    d = half_at(p, 0)
    for s in range(8):
        scales[s] = d * F(1 + 2 * (lshr(load_u8(I, p, 16 * (106 + (s >> 1))), 4 * (s & 1)) & 15))


@inline
def iq3_s(p: int, s: int, j: int, table: int) -> Vector:
    high = lshr(load_u8(I, p, 16 * (66 + s)), j) & 1
    point = load_u8(I, p, 16 * (2 + 8 * s + j)) | high << 8
    return signed(fetch(table, point), load_u8(I, p, 16 * (74 + 4 * s + (j >> 1))), j)


def points_of(codec: QuantCodec) -> NDArray[np.int32]:
    """The grid of a codec: magnitudes as bytes, four to a word, point after point."""
    count, numbers, scale = {
        "IQ2_XS": (512, 32, 0.125),
        "IQ2_S": (1024, 32, 0.125),
        "IQ3_XXS": (256, 64, 0.25),
        "IQ3_S": (512, 64, 1.0),
    }[codec.name]
    blocks = np.zeros((count // numbers, codec.type_size), np.uint8)
    blocks[:, 1] = 0x3C  # float16 1.0
    point = np.arange(count).reshape(-1, numbers)
    if codec.name == "IQ2_XS":
        blocks[:, 2:66] = point.astype("<u2").view(np.uint8)
    else:
        blocks[:, 2 : 2 + numbers] = point & 255
    if codec.name == "IQ2_S":
        blocks[:, 66:74] = (point >> 8)[:, :8] * 0b01010101
    if codec.name == "IQ3_S":
        blocks[:, 66:74] = (point >> 8)[:, :8] * 255
    magnitudes = codec.decode(blocks) / scale
    return np.ascontiguousarray(magnitudes.astype(np.uint8)).view(np.int32).reshape(-1)


BLOCKS = (
    Block(
        qtype="IQ2_XS",
        size=256,
        bytes=74,
        group=16,
        units=((2, 33), (1, 8)),
        top=0,
        scales=iq2_xs_scales,
        code=iq2_xs,
        points=1024,
    ),
    Block(
        qtype="IQ2_S",
        size=256,
        bytes=82,
        group=16,
        units=((2, 1), (1, 80)),
        top=0,
        scales=iq2_s_scales,
        code=iq2_s,
        points=2048,
    ),
    Block(
        qtype="IQ3_XXS",
        size=256,
        bytes=98,
        group=32,
        units=((2, 1), (1, 64), (4, 8)),
        top=0,
        scales=iq3_xxs_scales,
        code=iq3_xxs,
        points=256,
    ),
    Block(
        qtype="IQ3_S",
        size=256,
        bytes=110,
        group=32,
        units=((2, 1), (1, 108)),
        top=0,
        scales=iq3_s_scales,
        code=iq3_s,
        points=512,
    ),
)
