"""One sub-block of sixteen weights' rows by eight rows of x, where there are sixteen registers of eight lanes: AVX2,
with the dot products of AVX-VNNI or without.

Eight partial sums of eight weights' rows fill half of the registers; what they are added to stays in memory, in the
first-level cache: `acc` is the address of the sums, sixteen lanes for each row of x. So a broadcast of activations is
used once only, but no partial sum is moved to and fro.
"""

from __future__ import annotations

from typing import Any

from hf2q.backends.cpu.integer_parts import Eight, nothing
from hf2q.backends.cpu.specialise import specialise_part
from hf2q.backends.cpu.tiles import place
from hf2q.simd import F32, I32, Vector, high_half, inline, load, low_half, spread, store

F, I = F32(8), I32(8)  # noqa: E741
EIGHT_LANES = {"F": F, "I": I}
"""What parts of sixteen lanes want in place of theirs."""

# what `specialise` puts in place for each qtype
WORDS = RUN = LINES = SIDE = 1
FUSED = False
code: Any = None
step: Any = None
close: Any = None
ask: Any = None
begin: Any = None
finish: Any = None
half_of: Any = None
low: Any = None
high: Any = None


def add_half(acc: int, p: int, s: int, x: Eight, at: int, half: int, table: int, scale: Vector, minimum: Vector) -> int:
    """Eight of the sixteen weights' rows, those of `half_of`; their sums begin at byte `SIDE` of each row's."""
    x0, x1, x2, x3, x4, x5, x6, x7 = x
    d0, d1, d2, d3 = begin(x0, at, half), begin(x1, at, half), begin(x2, at, half), begin(x3, at, half)
    d4, d5, d6, d7 = begin(x4, at, half), begin(x5, at, half), begin(x6, at, half), begin(x7, at, half)
    d0 = ask(d0, p + 64 * LINES * s)
    for r in range(0, WORDS, RUN):
        p0, p1, p2, p3 = (d0, d1, d2, d3) if FUSED else (I(0), I(0), I(0), I(0))
        p4, p5, p6, p7 = (d4, d5, d6, d7) if FUSED else (I(0), I(0), I(0), I(0))
        for j in range(r, r + RUN):
            word, k = half_of(code(p, s, j, table)), at + 16 * half + 4 * j
            p0, p1 = step(p0, word, spread(I, x0, k)), step(p1, word, spread(I, x1, k))
            p2, p3 = step(p2, word, spread(I, x2, k)), step(p3, word, spread(I, x3, k))
            p4, p5 = step(p4, word, spread(I, x4, k)), step(p5, word, spread(I, x5, k))
            p6, p7 = step(p6, word, spread(I, x6, k)), step(p7, word, spread(I, x7, k))
        if FUSED:
            d0, d1, d2, d3 = close(p0), close(p1), close(p2), close(p3)
            d4, d5, d6, d7 = close(p4), close(p5), close(p6), close(p7)
        else:
            d0, d1, d2, d3 = d0 + close(p0), d1 + close(p1), d2 + close(p2), d3 + close(p3)
            d4, d5, d6, d7 = d4 + close(p4), d5 + close(p5), d6 + close(p6), d7 + close(p7)
    scale, minimum = half_of(scale), half_of(minimum)
    store(acc, SIDE, finish(load(F, acc, SIDE), d0, x0, at, half, scale, minimum))
    store(acc, 64 + SIDE, finish(load(F, acc, 64 + SIDE), d1, x1, at, half, scale, minimum))
    store(acc, 128 + SIDE, finish(load(F, acc, 128 + SIDE), d2, x2, at, half, scale, minimum))
    store(acc, 192 + SIDE, finish(load(F, acc, 192 + SIDE), d3, x3, at, half, scale, minimum))
    store(acc, 256 + SIDE, finish(load(F, acc, 256 + SIDE), d4, x4, at, half, scale, minimum))
    store(acc, 320 + SIDE, finish(load(F, acc, 320 + SIDE), d5, x5, at, half, scale, minimum))
    store(acc, 384 + SIDE, finish(load(F, acc, 384 + SIDE), d6, x6, at, half, scale, minimum))
    store(acc, 448 + SIDE, finish(load(F, acc, 448 + SIDE), d7, x7, at, half, scale, minimum))
    return acc


def add_halves(
    acc: int, p: int, s: int, x: Eight, at: int, half: int, table: int, scales: Vector, minimums: Vector
) -> int:
    """As the `add_…` of `integer_parts`, but for `acc`."""
    low(acc, p, s, x, at, half, table, scales[s], minimums[s])
    high(acc, p, s, x, at, half, table, scales[s], minimums[s])
    return acc


def in_halves(suffix: str, **parts: Any) -> Any:
    """`add_halves` of a qtype; `parts` are what `add_half` is made of."""
    low = specialise_part(add_half, f"{suffix}_low", half_of=low_half, SIDE=0, **parts)
    parts["ask"] = nothing  # for weights that the first half has asked for
    high = specialise_part(add_half, f"{suffix}_high", half_of=high_half, SIDE=32, **parts)
    return specialise_part(add_halves, suffix, low=low, high=high)


@inline
def taken_in_place(kept: Vector, r: int) -> int:
    at: int = place(kept) + 64 * r
    return at


@inline
def kept_in_place(kept: Vector, r: int, acc: int) -> None:
    pass
