"""What the kernels of `integer` are made of: one sub-block of sixteen weights' rows by one, four or eight rows of x.

`x` is the address of a row's records or a tuple of them, `at` and `half` say which record and which half of it belongs
to sub-block `s` of the weights at `p`; `acc` is a sum or a tuple of them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from hf2q.backends.cpu.job import (
    ACROSS,
    GROUP_BYTES,
    IN,
    OUT,
    PASSING,
    RECORD,
    ROWS,
    ROWS_EACH,
    SCALE,
    TABLE,
    WEIGHTS,
)
from hf2q.backends.cpu.native import peek
from hf2q.simd import F32, I32, Vector, as_int, fma, inline, load, put32, scratch, spread, store

F, I = F32(16), I32(16)  # noqa: E741

Four: TypeAlias = tuple[Any, ...]
Eight: TypeAlias = tuple[Any, ...]

# what `specialise` puts in place for each qtype
WORDS = RUN = LOWS = SUMS = SHARE = LINES = 1
NEXT = HALF = 0
UP = DOWN = 0
MINIMUMS = LOWERED = FUSED = False
code: Any = None
step: Any = None
close: Any = None
add: Any = None
ask: Any = None
begin: Any = None
finish: Any = None


@inline
def weights_of(segment: int) -> Four:
    """Where weights begin, the bytes of a group of sixteen rows, how many rows there are, the table of their codes."""
    return peek(segment, WEIGHTS), peek(segment, GROUP_BYTES), peek(segment, ROWS), peek(segment, TABLE)


@inline
def passing_of(segment: int, unit: int) -> tuple[int, int, int]:
    """Of the rows of x in a unit: how many there are, and where their places in x and in the result are listed."""
    start = unit // peek(segment, ACROSS) * peek(segment, ROWS_EACH)
    count = min(peek(segment, ROWS_EACH), peek(segment, PASSING) - start)
    return count, peek(segment, IN) + 8 * start, peek(segment, OUT) + 8 * start


@inline
def put(y: int, acc: Vector, rows: int) -> None:
    """Store sixteen sums, or as many as there are `rows` left."""
    if rows >= 16:
        store(y, 0, acc)
    else:
        lanes = scratch(I, 1)
        lanes[0] = as_int(acc)
        for lane in range(rows):
            put32(y, 4 * lane, lanes[0, lane])


def begin_of(x: int, at: int, half: int) -> Vector:
    """What an exact dot product begins with: what the offset of the codes adds to it, to be taken off."""
    if LOWERED:
        return spread(I, x, at + SUMS + 4 * half) << UP >> DOWN
    return I(0)


def finish_of(acc: Vector, dot: Vector, x: int, at: int, half: int, scale: Vector, minimum: Vector) -> Vector:
    """acc and what the dot product stands for."""
    acc = fma(F(dot) * spread(F, x, at + SCALE), scale, acc)
    if MINIMUMS:
        acc = fma(minimum, spread(F, x, at + LOWS + 4 * half), acc)
    return acc


def add_1(
    acc: Vector, p: int, s: int, x: int, at: int, half: int, table: int, scales: Vector, minimums: Vector
) -> Vector:
    acc = ask(acc, p + 64 * LINES * s)
    dot = begin(x, at, half)
    for r in range(0, WORDS, RUN):
        part = dot if FUSED else I(0)
        for j in range(r, r + RUN):
            part = step(part, code(p, s, j, table), spread(I, x, at + 16 * half + 4 * j))
        dot = close(part) if FUSED else dot + close(part)
    return finish(acc, dot, x, at, half, scales[s], minimums[s])


def add_4(acc: Four, p: int, s: int, x: Four, at: int, half: int, table: int, scales: Vector, minimums: Vector) -> Four:
    x0, x1, x2, x3 = x
    a0, a1, a2, a3 = acc
    a0 = ask(a0, p + 64 * LINES * s)
    d0, d1, d2, d3 = begin(x0, at, half), begin(x1, at, half), begin(x2, at, half), begin(x3, at, half)
    for r in range(0, WORDS, RUN):
        p0, p1, p2, p3 = (d0, d1, d2, d3) if FUSED else (I(0), I(0), I(0), I(0))
        for j in range(r, r + RUN):
            word, k = code(p, s, j, table), at + 16 * half + 4 * j
            p0, p1 = step(p0, word, spread(I, x0, k)), step(p1, word, spread(I, x1, k))
            p2, p3 = step(p2, word, spread(I, x2, k)), step(p3, word, spread(I, x3, k))
        if FUSED:
            d0, d1, d2, d3 = close(p0), close(p1), close(p2), close(p3)
        else:
            d0, d1, d2, d3 = d0 + close(p0), d1 + close(p1), d2 + close(p2), d3 + close(p3)
    scale, low = scales[s], minimums[s]
    a0, a1 = finish(a0, d0, x0, at, half, scale, low), finish(a1, d1, x1, at, half, scale, low)
    a2, a3 = finish(a2, d2, x2, at, half, scale, low), finish(a3, d3, x3, at, half, scale, low)
    return a0, a1, a2, a3


def add_8(
    acc: Eight, p: int, s: int, x: Eight, at: int, half: int, table: int, scales: Vector, minimums: Vector
) -> Eight:
    """Only where a step does it all and closing is nothing."""
    x0, x1, x2, x3, x4, x5, x6, x7 = x
    a0, a1, a2, a3, a4, a5, a6, a7 = acc
    a0 = ask(a0, p + 64 * LINES * s)
    d0, d1, d2, d3 = begin(x0, at, half), begin(x1, at, half), begin(x2, at, half), begin(x3, at, half)
    d4, d5, d6, d7 = begin(x4, at, half), begin(x5, at, half), begin(x6, at, half), begin(x7, at, half)
    for j in range(WORDS):
        word, k = code(p, s, j, table), at + 16 * half + 4 * j
        d0, d1 = step(d0, word, spread(I, x0, k)), step(d1, word, spread(I, x1, k))
        d2, d3 = step(d2, word, spread(I, x2, k)), step(d3, word, spread(I, x3, k))
        d4, d5 = step(d4, word, spread(I, x4, k)), step(d5, word, spread(I, x5, k))
        d6, d7 = step(d6, word, spread(I, x6, k)), step(d7, word, spread(I, x7, k))
    scale, low = scales[s], minimums[s]
    a0, a1 = finish(a0, d0, x0, at, half, scale, low), finish(a1, d1, x1, at, half, scale, low)
    a2, a3 = finish(a2, d2, x2, at, half, scale, low), finish(a3, d3, x3, at, half, scale, low)
    a4, a5 = finish(a4, d4, x4, at, half, scale, low), finish(a5, d5, x5, at, half, scale, low)
    a6, a7 = finish(a6, d6, x6, at, half, scale, low), finish(a7, d7, x7, at, half, scale, low)
    return a0, a1, a2, a3, a4, a5, a6, a7


def share_of(acc: Any, p: int, s: int, x: Any, at: int, table: int, scales: Vector, minimums: Vector) -> Any:
    """Sub-block s and the next ones that share bytes or a record with it; `at` is the record of s.

    They follow each other in the source, so that all in which they differ is a constant. Eight are of sixteen inputs.
    """
    acc = add(acc, p, s, x, at, 0, table, scales, minimums)
    if SHARE > 1:
        acc = add(acc, p, s + 1, x, at + NEXT, HALF, table, scales, minimums)
    if SHARE > 2:
        acc = add(acc, p, s + 2, x, at + RECORD, 0, table, scales, minimums)
        acc = add(acc, p, s + 3, x, at + RECORD, HALF, table, scales, minimums)
        acc = add(acc, p, s + 4, x, at + 2 * RECORD, 0, table, scales, minimums)
        acc = add(acc, p, s + 5, x, at + 2 * RECORD, HALF, table, scales, minimums)
        acc = add(acc, p, s + 6, x, at + 3 * RECORD, 0, table, scales, minimums)
        acc = add(acc, p, s + 7, x, at + 3 * RECORD, HALF, table, scales, minimums)
    return acc


@inline
def nothing(acc: Vector, p: int) -> Vector:
    """The `ask` of weights that lie unpacked in the cache."""
    return acc


def unpacked(p: int, s: int, j: int, table: int) -> Vector:
    """The `code` of weights whose words lie unpacked, one after the other."""
    return load(I, p, 64 * (WORDS * s + j))


@inline
def rows_4(records: int, stride: int, index: int, last: int) -> Four:
    """Where four rows lie; those behind `last` are the last again."""
    return (
        records + stride * peek(index, 0),
        records + stride * peek(index, min(1, last)),
        records + stride * peek(index, min(2, last)),
        records + stride * peek(index, min(3, last)),
    )


@inline
def rows_8(records: int, stride: int, index: int, last: int) -> Eight:
    """Where eight rows lie, likewise."""
    return (
        records + stride * peek(index, 0),
        records + stride * peek(index, min(1, last)),
        records + stride * peek(index, min(2, last)),
        records + stride * peek(index, min(3, last)),
        records + stride * peek(index, min(4, last)),
        records + stride * peek(index, min(5, last)),
        records + stride * peek(index, min(6, last)),
        records + stride * peek(index, min(7, last)),
    )


@inline
def taken_4(kept: Vector, r: int) -> Four:
    return kept[r], kept[r + 1], kept[r + 2], kept[r + 3]


@inline
def taken_8(kept: Vector, r: int) -> Eight:
    return kept[r], kept[r + 1], kept[r + 2], kept[r + 3], kept[r + 4], kept[r + 5], kept[r + 6], kept[r + 7]


@inline
def keep_4(kept: Vector, r: int, acc: Four) -> None:
    kept[r], kept[r + 1], kept[r + 2], kept[r + 3] = acc


@inline
def keep_8(kept: Vector, r: int, acc: Eight) -> None:
    kept[r], kept[r + 1], kept[r + 2], kept[r + 3], kept[r + 4], kept[r + 5], kept[r + 6], kept[r + 7] = acc


TILES = {4: (add_4, rows_4, taken_4, keep_4), 8: (add_8, rows_8, taken_8, keep_8)}
"""By rows: the parts that kernels of so many rows at once are made of; the first is a template."""
