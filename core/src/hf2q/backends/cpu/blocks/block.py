"""`Block`: how one qtype is laid out once repacked, and the parts of kernels that read it.

Sixteen rows stand side by side. The block k of all sixteen is one packed block: each field of the original block (a
half, a word of codes …) is repeated sixteen times, row after row, in the original order, so a packed block is exactly
sixteen times as large, and one vector of int32 holds the same word of sixteen rows. Codes stay as they are packed in
the file: in every type of ggml a word of four bytes holds, once shifted and masked, the codes of four neighbouring
inputs, which is what byte dot products want.

A weight is (code - offset) * scale - minimum, with a scale, and in some types a minimum, per sub-block of inputs.
"""

from __future__ import annotations

from typing import Any

from hf2q.simd import F32, I32, Vector, from_half, inline, load_u16, lshr
from hf2q.types import Record

F, I = F32(16), I32(16)  # noqa: E741  (the layer's own names)


class Block(Record, frozen=True, kw_only=True):
    """One qtype.

    size, bytes   inputs and bytes of a block of one row
    group         inputs that share a scale: 16 or 32
    units         field sizes in the file's order: (unit in bytes 1, 2 or 4, how many)
    top           the largest code, or 0 for signed bytes (kept `^ WIDE_FLIP`, see `bytes`)
    offset        of narrow codes; wide ones have WIDE_OFFSET
    minimums      whether weights have a minimum
    scales        part(p, scales, minimums): fill two scratches with the vectors of all sub-blocks of the packed block
                  at address p
    code          part(p, s, j, table): word j of the codes of sub-block s
    share         2 where sub-blocks 2c and 2c + 1 lie in the halves of the same bytes
    points        how many words the table holds that codes are looked up in; its address is the `table` of `code`
    """

    qtype: str
    size: int
    bytes: int
    group: int
    units: tuple[tuple[int, int], ...]
    top: int
    offset: int = 0
    minimums: bool = False
    scales: Any
    code: Any
    share: int = 1
    points: int = 0


@inline
def half_at(p: int, at: int) -> Vector:
    """The float16 numbers of sixteen rows at byte `at` of the original block."""
    return from_half(load_u16(I, p, 16 * at))


@inline
def byte_of(words: Vector, k: int) -> Vector:
    """Byte k of each word."""
    return lshr(words, 8 * k) & 255


@inline
def bits_to_bytes(four: Vector) -> Vector:
    """Bits 0 to 3 of each lane as bytes 0 or 1."""
    return (four * 0x00204081) & 0x01010101
