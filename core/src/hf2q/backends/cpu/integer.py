"""Weights times activations in int8: templates of `one_row` (decoding), `few_rows` and `many_rows` (batches, prefill).

All add up the same numbers in the same order: for each sub-block of 16 or 32 inputs an exact integer dot product, less
what the offset of the codes adds to it, times the scales of activations and weights; then the minimum. So a row comes
out the same bit for bit however many are computed together, on every processor that has fused multiply-add.

Few rows share each word of codes while it is in a register. With more, sixteen rows of weights are unpacked to memory,
256 inputs at a time, and tiles of rows pass over them.
"""

from __future__ import annotations

from typing import Any

from hf2q.backends.cpu import bytes as bytes_
from hf2q.backends.cpu.ahead import asking
from hf2q.backends.cpu.blocks import Block
from hf2q.backends.cpu.bytes import HALVED, SIGNS, VNNI, WIDE_OFFSET, narrow_close, narrow_step, wide_close, wide_step
from hf2q.backends.cpu.integer_halves import EIGHT_LANES, add_halves, in_halves, kept_in_place, taken_in_place
from hf2q.backends.cpu.integer_parts import (
    TILES,
    add_1,
    add_8,
    begin_of,
    finish_of,
    nothing,
    passing_of,
    put,
    share_of,
    unpacked,
    weights_of,
)
from hf2q.backends.cpu.integer_slab import slab_kernel
from hf2q.backends.cpu.job import (
    ACROSS,
    COLUMNS,
    GROUPS_EACH,
    IN,
    LOW_32,
    LOWS_16,
    MOST_ROWS,
    OUT,
    RECORD,
    RECORDS,
    RESULTS,
    STEP,
    STEP_WORDS,
    SUM_32,
    SUMS_16,
    Y_STRIDE,
    Y,
)
from hf2q.backends.cpu.native import peek
from hf2q.backends.cpu.specialise import specialise, specialise_part
from hf2q.backends.cpu.tiles import place
from hf2q.simd import F32, I32, Kernel, scratch

F, I = F32(16), I32(16)  # noqa: E741

TILE = 8
"""Rows that pass together: `specialise` puts in place how many it is for a qtype."""
ROOM = MOST_ROWS + 8
"""Sums that a unit keeps: tiles may stand over the last row."""

# what `specialise` puts in place for each qtype
SIZE = PACKED = WORDS = SUBS = SUBS_STEP = BLOCKS_STEP = SHARE = EACH = 1
MINIMUMS = False
fill_scales: Any = None
code: Any = None
add: Any = None
rows_of: Any = None
taken: Any = None
keep: Any = None


def one_row(segment: int, job: int, unit: int) -> None:
    w, group_bytes, rows, table = weights_of(segment)
    columns, across, each = peek(job, COLUMNS), peek(segment, ACROSS), peek(segment, GROUPS_EACH)
    passing = unit // across
    y = peek(job, RESULTS) + peek(segment, Y) + peek(peek(segment, OUT), passing) * peek(segment, Y_STRIDE)
    x = peek(job, RECORDS) + peek(peek(segment, IN), passing) * (columns // 32 * RECORD)
    scales, mins = scratch(F, SUBS), scratch(F, SUBS)
    subs = SUBS + (unit >> 62)  # SUBS, but LLVM must not know: it would unroll the loop to no use
    first = unit % across * each
    for g in range(first, min(first + each, (rows + 15) // 16)):
        p = w + g * group_bytes
        acc = F(0)
        for b in range(columns // SIZE):
            fill_scales(p, scales, mins)
            for s in range(0, subs, SHARE):
                acc = add(acc, p, s, x, EACH * (SUBS * b + s), table, scales, mins)
            p += PACKED
        put(y + 64 * g, acc, rows - 16 * g)


def few_rows(segment: int, job: int, unit: int) -> None:
    """Up to as many rows as `add` takes at once; the last is repeated where there are fewer."""
    w, group_bytes, rows, table = weights_of(segment)
    columns, across, each = peek(job, COLUMNS), peek(segment, ACROSS), peek(segment, GROUPS_EACH)
    count, source, target = passing_of(segment, unit)
    last = count - 1
    y, stride = peek(job, RESULTS) + peek(segment, Y), peek(segment, Y_STRIDE)
    scales, mins, acc = scratch(F, SUBS), scratch(F, SUBS), scratch(F, 8)
    x = rows_of(peek(job, RECORDS), columns // 32 * RECORD, source, last)
    first = unit % across * each
    for g in range(first, min(first + each, (rows + 15) // 16)):
        p = w + g * group_bytes
        for r in range(8):
            acc[r] = F(0)
        sums = taken(acc, 0)
        for b in range(columns // SIZE):
            fill_scales(p, scales, mins)
            for s in range(0, SUBS, SHARE):
                sums = add(sums, p, s, x, EACH * (SUBS * b + s), table, scales, mins)
            p += PACKED
        keep(acc, 0, sums)
        for r in range(last + 1):
            put(y + peek(target, r) * stride + 64 * g, acc[r], rows - 16 * g)


def many_rows(segment: int, job: int, unit: int) -> None:
    w, group_bytes, rows, table = weights_of(segment)
    columns, across, each = peek(job, COLUMNS), peek(segment, ACROSS), peek(segment, GROUPS_EACH)
    count, source, target = passing_of(segment, unit)
    y, stride = peek(job, RESULTS) + peek(segment, Y), peek(segment, Y_STRIDE)
    words, w_scales, w_mins = scratch(I, STEP_WORDS), scratch(F, SUBS_STEP), scratch(F, SUBS_STEP)
    one_scales, one_mins, acc = scratch(F, SUBS), scratch(F, SUBS), scratch(F, ROOM)
    blocks, panel = columns // SIZE, place(words)
    first = unit % across * each
    for g in range(first, min(first + each, (rows + 15) // 16)):
        p = w + g * group_bytes
        for r in range(count + TILE):
            acc[r] = F(0)
        for b in range(0, blocks, BLOCKS_STEP):
            here = min(BLOCKS_STEP, blocks - b)
            for k in range(here):
                fill_scales(p, one_scales, one_mins)
                for s in range(SUBS):
                    at = k * SUBS + s
                    w_scales[at] = one_scales[s]
                    if MINIMUMS:
                        w_mins[at] = one_mins[s]
                    for j in range(WORDS):
                        words[at * WORDS + j] = code(p, s, j, table)
                p += PACKED
            for r in range(0, count, TILE):
                x = rows_of(peek(job, RECORDS), columns // 32 * RECORD, source + 8 * r, count - 1 - r)
                sums = taken(acc, r)
                for s in range(0, here * SUBS, SHARE):
                    sums = add(sums, panel, s, x, EACH * (SUBS * b + s), 0, w_scales, w_mins)
                keep(acc, r, sums)
        for r in range(count):
            put(y + peek(target, r) * stride + 64 * g, acc[r], rows - 16 * g)


def kernels(block: Block) -> dict[str, Kernel[[int, int, int], None]]:
    """`one_row`, `many_rows`, and where they pay `few_rows_4`, `few_rows_8` and `slab_rows` of a qtype; compiled when
    used.
    """
    wide, words, packed = block.top == 0, block.group // 4, 16 * block.bytes
    offset = WIDE_OFFSET if wide else block.offset
    kept_as = 32 if block.group == 16 else 128  # the offset that sums in records are multiplied by
    power = (offset or kept_as).bit_length() - kept_as.bit_length()
    begins = {
        "LOWERED": offset > 0,
        "SUMS": SUMS_16 if block.group == 16 else SUM_32,
        "UP": max(0, power),
        "DOWN": max(0, -power),
    }
    finishes = {"MINIMUMS": block.minimums, "LOWS": LOWS_16 if block.group == 16 else LOW_32}
    names: dict[str, Any] = {
        "begin": specialise_part(begin_of, block.qtype, **begins),
        "finish": specialise_part(finish_of, block.qtype, **finishes),
        "step": wide_step if wide else narrow_step,
        "WORDS": words,
    }
    runs = {
        "RUN": words if wide else bytes_.run(block.top, words),
        "FUSED": VNNI or not bytes_.SHORTS,
        "close": wide_close if wide else narrow_close,
    }
    shape = {
        "SIZE": block.size,
        "PACKED": packed,
        "SUBS": block.size // block.group,
        "EACH": RECORD * block.group // 32,
        "fill_scales": block.scales,
    }
    share = max(block.share, 32 // block.group)
    spans = {"NEXT": RECORD if block.group == 32 else 0, "HALF": 1 if block.group == 16 else 0}
    lines = -(-packed * block.group // (64 * block.size))  # cache lines per sub-block
    packed_words = {"code": block.code, "LINES": lines, "ask": asking(lines, far=block.size > 32)}
    panel_words = {"code": specialise_part(unpacked, block.qtype, WORDS=words), "ask": nothing}
    few_words = packed_words | {"ask": asking(lines, far=True)}
    # shifts by constants, and half of them fall away
    unrolled = 8 if VNNI and block.group == 16 and not wide else share
    # with half as many inputs to a sum, its ends take more than is won: without VNNI, and where codes lie unpacked
    halves = HALVED and (VNNI or block.group == 32)
    at_once = 8 if (VNNI and not HALVED) or (halves and block.group == 32) else 4
    slabs = SIGNS and not wide and not block.points
    few_at_once = (4, 8) if (VNNI or halves) and not slabs else (4,) if SIGNS else ()

    def adding(template: Any, suffix: str, read: dict[str, Any], share: int) -> dict[str, Any]:
        suffix = f"{block.qtype}_{suffix}"
        if template is add_halves:
            ends = {
                "begin": specialise_part(begin_of, f"{block.qtype}_8", **begins, **EIGHT_LANES),
                "finish": specialise_part(finish_of, f"{block.qtype}_8", **finishes, **EIGHT_LANES),
            }
            add = in_halves(suffix, **names | read | ends, **runs)
        else:
            add = specialise_part(template, suffix, **read, **names, **({} if template is add_8 else runs))
        return {"add": specialise_part(share_of, suffix, add=add, SHARE=share, **spans), "SHARE": share}

    def tile(rows: int, *how: Any) -> dict[str, Any]:
        template: Any
        taken: Any
        keep: Any
        template, rows_of, taken, keep = TILES[rows]
        if halves and rows == 8:
            template, taken, keep = add_halves, taken_in_place, kept_in_place
        return {**adding(template, *how), "rows_of": rows_of, "taken": taken, "keep": keep}

    made = {
        "one_row": specialise(
            one_row,
            block.qtype,
            **adding(add_1, "packed", packed_words, share),
            **shape,
        ),
        "many_rows": specialise(
            many_rows,
            block.qtype,
            WORDS=words,
            MINIMUMS=block.minimums,
            SUBS_STEP=STEP // block.group,
            BLOCKS_STEP=STEP // block.size,
            TILE=at_once,
            code=block.code,
            **shape,
            **tile(at_once, "unpacked", panel_words, share),
        ),
    }
    for rows in few_at_once:
        few = tile(rows, "packed", few_words, unrolled)
        made[f"few_rows_{rows}"] = specialise(few_rows, f"{rows}_{block.qtype}", **shape, **few)
    if slabs:
        made["slab_rows"] = slab_kernel(block)
    return made
