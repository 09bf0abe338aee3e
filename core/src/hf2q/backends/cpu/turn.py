"""Turning a few words of eight or sixteen rows, so that what followed each other in a row lie side by side.

Sixteen bytes of a register are turned at a time, which every processor does in one instruction; the halves of wider
registers are exchanged at the end.
"""

from __future__ import annotations

from typing import Any

from hf2q.simd.codegen import Built, define, i16, i32, i64, ir, shuffle, types

_WORDS = ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15])
_PAIRS = ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])
_FOURS = ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])


def _turned(b: Any, source: Any, stride: Any) -> list[Any]:
    """Eight vectors of eight words: vector k holds word k of eight rows that begin `stride` bytes apart."""
    kind = ir.VectorType(i32, 8).as_pointer()
    rows = [b.load(b.inttoptr(b.add(source, b.mul(stride, i64(r))), kind), align=1) for r in range(8)]
    twos = [shuffle(b, rows[r], rows[r + 1], lanes) for r in range(0, 8, 2) for lanes in _WORDS]
    fours = [shuffle(b, twos[r + j], twos[r + j + 2], lanes) for r in (0, 4) for j in (0, 1) for lanes in _PAIRS]
    return [shuffle(b, fours[k], fours[k + 4], lanes) for lanes in _FOURS for k in range(4)]


def _store(b: Any, value: Any, target: Any, at: int) -> None:
    b.store(value, b.inttoptr(b.add(target, i64(at)), value.type.as_pointer()), align=1)


@define
def turn_words(source: Any, stride: Any, target: Any) -> Built:
    """Eight int32 of sixteen rows: word k of all rows to the 64 bytes from `target` + 64 k on."""

    def make(ctx: Any, b: Any, source: Any, stride: Any, target: Any) -> None:
        for half in range(2):
            begin = b.add(source, b.mul(stride, i64(8 * half)))
            for k, words in enumerate(_turned(b, begin, stride)):
                _store(b, words, target, 64 * k + 32 * half)

    return types.none, (types.int64, types.int64, types.int64), make


@define
def turn_halves(source: Any, stride: Any, target: Any) -> Built:
    """Sixteen 16-bit numbers of sixteen rows: number k of all rows to the 32 bytes from `target` + 32 k on."""

    def make(ctx: Any, b: Any, source: Any, stride: Any, target: Any) -> None:
        shorts = ir.VectorType(i16, 16)
        low = _turned(b, source, stride)
        high = _turned(b, b.add(source, b.mul(stride, i64(8))), stride)
        for k in range(8):
            both = b.bitcast(low[k], shorts), b.bitcast(high[k], shorts)
            for odd in range(2):
                _store(b, shuffle(b, *both, range(odd, 32, 2)), target, 32 * (2 * k + odd))

    return types.none, (types.int64, types.int64, types.int64), make
