"""Weights times activations in int8: the templates of `one_row` (decoding) and `many_rows` (batches and prefill).

Both add up the same numbers in the same order: for each sub-block of 16 or 32 inputs an exact integer dot product,
times the scales of activations and weights. So a row comes out the same bit for bit however many are computed
together, on every processor that has fused multiply-add. Offsets of codes are taken off like minimums.
"""

from __future__ import annotations

from typing import Any

from hf2q.backends.cpu import bytes as bytes_
from hf2q.backends.cpu.blocks import Block
from hf2q.backends.cpu.bytes import WIDE_OFFSET, narrow_close, narrow_step, wide_close, wide_step
from hf2q.backends.cpu.job import (
    ACROSS,
    CODES,
    COLUMNS,
    GROUP_BYTES,
    GROUPS_EACH,
    IN,
    LOWS_16,
    LOWS_32,
    MOST_ROWS,
    OUT,
    PASSING,
    RESULTS,
    ROWS,
    ROWS_EACH,
    SCALES,
    STEP,
    STEP_WORDS,
    TABLE,
    WEIGHTS,
    Y_STRIDE,
    Y,
)
from hf2q.backends.cpu.native import peek
from hf2q.backends.cpu.specialise import specialise, specialise_part
from hf2q.simd import F32, I32, Kernel, Vector, as_int, fma, inline, prefetch, put32, scratch, spread, store

F, I = F32(16), I32(16)  # noqa: E741

AHEAD = 4096
"""How far ahead weights are asked for, in bytes, a few lines at a time: in one burst they would wait for each other."""

# what `specialise` puts in place for each qtype
SIZE = PACKED = GROUP = WORDS = SUBS = SUBS_STEP = BLOCKS_STEP = RUN = OFFSET = LOWS = LINES = SHARE = 1
MINIMUMS = LOWERED = False
fill_scales: Any = None
code: Any = None
step: Any = None
close: Any = None
add: Any = None
tile_4: Any = None
tile_1: Any = None


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


def sub_block(
    acc: Vector, p: int, s: int, block: int, row: tuple[int, int, int], table: int, w_scales: Vector, w_mins: Vector
) -> Vector:
    """acc and what sub-block s of the packed block at p adds; `row`: codes, scales and lows of the row of x."""
    codes, scales, lows = row
    at = block * SUBS + s
    dot = I(0)
    for r in range(0, WORDS, RUN):
        part = I(0)
        for j in range(r, r + RUN):
            part = step(part, code(p, s, j, table), spread(I, codes, GROUP * at + 4 * j))
        dot = dot + close(part)
    acc = fma(F(dot) * spread(F, scales, GROUP * at // 32 * 4), w_scales[s], acc)
    if LOWERED:
        acc = fma(w_mins[s] if MINIMUMS else w_scales[s] * OFFSET, spread(F, lows, 4 * at), acc)
    return acc


def one_row(segment: int, job: int, unit: int) -> None:
    w, group_bytes, rows, table = (
        peek(segment, WEIGHTS),
        peek(segment, GROUP_BYTES),
        peek(segment, ROWS),
        peek(segment, TABLE),
    )
    columns, across, each = peek(job, COLUMNS), peek(segment, ACROSS), peek(segment, GROUPS_EACH)
    passing = unit // across
    source, target = peek(peek(segment, IN), passing), peek(peek(segment, OUT), passing)
    y = peek(job, RESULTS) + peek(segment, Y) + target * peek(segment, Y_STRIDE)
    row = (
        peek(job, CODES) + source * columns,
        peek(job, SCALES) + source * (columns // 32) * 4,
        peek(job, LOWS) + source * (columns // GROUP) * 4,
    )
    s_scales, s_mins = scratch(F, SUBS), scratch(F, SUBS)
    first = unit % across * each
    for g in range(first, min(first + each, (rows + 15) // 16)):
        p = w + g * group_bytes
        acc = F(0)
        for b in range(columns // SIZE):
            fill_scales(p, s_scales, s_mins)
            for s in range(0, SUBS, SHARE):
                for line in range(LINES * SHARE):
                    prefetch(p, AHEAD + 64 * (LINES * s + line))
                # sub-blocks that share bytes, one after the other in the source, so that their shifts are constants
                acc = add(acc, p, s, b, row, table, s_scales, s_mins)
                if SHARE == 2:
                    acc = add(acc, p, s + 1, b, row, table, s_scales, s_mins)
            p += PACKED
        put(y + 64 * g, acc, rows - 16 * g)


def tile_of_4(
    words: Vector,
    w_scales: Vector,
    w_mins: Vector,
    acc: Vector,
    first: int,
    count: int,
    index: int,
    job: int,
    columns: int,
    block: int,
) -> None:
    """Four rows of x by the sixteen unpacked ones, over `count` sub-blocks from number `block` on."""
    i0, i1, i2, i3 = peek(index, 0), peek(index, 1), peek(index, 2), peek(index, 3)
    codes, scales = peek(job, CODES) + GROUP * block, peek(job, SCALES) + GROUP * block // 32 * 4
    lows = peek(job, LOWS) + 4 * block
    c0, c1, c2, c3 = codes + i0 * columns, codes + i1 * columns, codes + i2 * columns, codes + i3 * columns
    n = columns // 32 * 4
    s0, s1, s2, s3 = scales + i0 * n, scales + i1 * n, scales + i2 * n, scales + i3 * n
    n = columns // GROUP * 4
    l0, l1, l2, l3 = lows + i0 * n, lows + i1 * n, lows + i2 * n, lows + i3 * n
    a0, a1, a2, a3 = acc[first], acc[first + 1], acc[first + 2], acc[first + 3]
    for s in range(count):
        d0 = d1 = d2 = d3 = I(0)
        for r in range(0, WORDS, RUN):
            p0 = p1 = p2 = p3 = I(0)
            for j in range(r, r + RUN):
                word, at = words[WORDS * s + j], GROUP * s + 4 * j
                p0 = step(p0, word, spread(I, c0, at))
                p1 = step(p1, word, spread(I, c1, at))
                p2 = step(p2, word, spread(I, c2, at))
                p3 = step(p3, word, spread(I, c3, at))
            d0, d1, d2, d3 = d0 + close(p0), d1 + close(p1), d2 + close(p2), d3 + close(p3)
        at, scale = GROUP * s // 32 * 4, w_scales[s]
        a0 = fma(F(d0) * spread(F, s0, at), scale, a0)
        a1 = fma(F(d1) * spread(F, s1, at), scale, a1)
        a2 = fma(F(d2) * spread(F, s2, at), scale, a2)
        a3 = fma(F(d3) * spread(F, s3, at), scale, a3)
        if LOWERED:
            low = w_mins[s]
            a0, a1 = fma(low, spread(F, l0, 4 * s), a0), fma(low, spread(F, l1, 4 * s), a1)
            a2, a3 = fma(low, spread(F, l2, 4 * s), a2), fma(low, spread(F, l3, 4 * s), a3)
    acc[first], acc[first + 1], acc[first + 2], acc[first + 3] = a0, a1, a2, a3


def tile_of_1(
    words: Vector,
    w_scales: Vector,
    w_mins: Vector,
    acc: Vector,
    first: int,
    count: int,
    index: int,
    job: int,
    columns: int,
    block: int,
) -> None:
    """One row of x likewise."""
    i = peek(index, 0)
    codes = peek(job, CODES) + GROUP * block + i * columns
    scales = peek(job, SCALES) + GROUP * block // 32 * 4 + columns // 32 * 4 * i
    lows = peek(job, LOWS) + 4 * block + columns // GROUP * 4 * i
    a = acc[first]
    for s in range(count):
        dot = I(0)
        for r in range(0, WORDS, RUN):
            part = I(0)
            for j in range(r, r + RUN):
                part = step(part, words[WORDS * s + j], spread(I, codes, GROUP * s + 4 * j))
            dot = dot + close(part)
        a = fma(F(dot) * spread(F, scales, GROUP * s // 32 * 4), w_scales[s], a)
        if LOWERED:
            a = fma(w_mins[s], spread(F, lows, 4 * s), a)
    acc[first] = a


def many_rows(segment: int, job: int, unit: int) -> None:
    w, group_bytes, rows, table = (
        peek(segment, WEIGHTS),
        peek(segment, GROUP_BYTES),
        peek(segment, ROWS),
        peek(segment, TABLE),
    )
    columns, across, each = peek(job, COLUMNS), peek(segment, ACROSS), peek(segment, GROUPS_EACH)
    start = unit // across * peek(segment, ROWS_EACH)
    count = min(peek(segment, ROWS_EACH), peek(segment, PASSING) - start)
    source, target = peek(segment, IN) + 8 * start, peek(segment, OUT) + 8 * start
    y, stride = peek(job, RESULTS) + peek(segment, Y), peek(segment, Y_STRIDE)
    words, w_scales, w_mins = scratch(I, STEP_WORDS), scratch(F, SUBS_STEP), scratch(F, SUBS_STEP)
    one_scales, one_mins, acc = scratch(F, SUBS), scratch(F, SUBS), scratch(F, MOST_ROWS)
    blocks = columns // SIZE
    first = unit % across * each
    for g in range(first, min(first + each, (rows + 15) // 16)):
        p = w + g * group_bytes
        for r in range(count):
            acc[r] = F(0)
        for b in range(0, blocks, BLOCKS_STEP):
            here = min(BLOCKS_STEP, blocks - b)
            for k in range(here):
                fill_scales(p, one_scales, one_mins)
                for s in range(SUBS):
                    at = k * SUBS + s
                    w_scales[at] = one_scales[s]
                    if LOWERED:
                        w_mins[at] = one_mins[s] if MINIMUMS else one_scales[s] * OFFSET
                    for j in range(WORDS):
                        words[at * WORDS + j] = code(p, s, j, table)
                p += PACKED
            r = 0
            while r + 4 <= count:
                tile_4(words, w_scales, w_mins, acc, r, here * SUBS, source + 8 * r, job, columns, b * SUBS)
                r += 4
            while r < count:
                tile_1(words, w_scales, w_mins, acc, r, here * SUBS, source + 8 * r, job, columns, b * SUBS)
                r += 1
        for r in range(count):
            put(y + peek(target, r) * stride + 64 * g, acc[r], rows - 16 * g)


def kernels(block: Block) -> dict[str, Kernel[[int, int, int], None]]:
    """`one_row` and `many_rows` of a qtype; compiled by their first use."""
    wide = block.top == 0
    words = block.group // 4
    packed = 16 * block.bytes
    names: dict[str, Any] = {
        "SIZE": block.size,
        "PACKED": packed,
        "GROUP": block.group,
        "WORDS": words,
        "SUBS": block.size // block.group,
        "RUN": words if wide else bytes_.run(block.top, words),
        "OFFSET": WIDE_OFFSET if wide else block.offset,
        "LOWS": LOWS_16 if block.group == 16 else LOWS_32,
        "MINIMUMS": block.minimums,
        "LOWERED": block.minimums or (WIDE_OFFSET if wide else block.offset) > 0,
        "step": wide_step if wide else narrow_step,
        "close": wide_close if wide else narrow_close,
    }
    unpacking = {"fill_scales": block.scales, "code": block.code}
    tiles = {
        "tile_4": specialise_part(tile_of_4, block.qtype, **names),
        "tile_1": specialise_part(tile_of_1, block.qtype, **names),
    }
    lines = -(-packed * block.group // (64 * block.size))  # cache lines per sub-block
    more = {"SUBS_STEP": STEP // block.group, "BLOCKS_STEP": STEP // block.size}
    add_part = specialise_part(sub_block, block.qtype, **names, code=block.code)
    return {
        "one_row": specialise(
            one_row,
            block.qtype,
            LINES=lines,
            SHARE=block.share,
            add=add_part,
            **names,
            **unpacking,
        ),
        "many_rows": specialise(many_rows, block.qtype, **names, **unpacking, **tiles, **more),
    }
