"""Weights times rows of x, eight at a time, on AVX2 without VNNI: activations lie in memory as products want them.

AVX2 has sixteen registers of eight lanes and cannot broadcast an operand while it multiplies. So the activations of
eight rows and 256 inputs, a slab, are broadcast to memory first, four inputs to eight lanes, and many groups
of weights' rows pass over the slab while it is in the first-level cache: a product and a sum are two instructions,
where a broadcast for each makes three. Partial sums of eight weights' rows fill half of the registers; what they are
added to waits in memory.

Sums of sixteen bits hold all products of a sub-block, because the offset of the codes is taken off in sixteen bits too,
and where codes without an offset are too large, half of their range, which is given back as an integer. So the numbers
that are added, and their order, are those of `integer`.

Only for narrow codes (see `bytes`): with wide ones multiplying itself takes longest.
"""

from __future__ import annotations

from typing import Any

from hf2q.backends.cpu.ahead import asking
from hf2q.backends.cpu.blocks import Block
from hf2q.backends.cpu.bytes import narrow_close, narrow_step, without
from hf2q.backends.cpu.integer_parts import Eight, nothing, passing_of, put, share_of, weights_of
from hf2q.backends.cpu.job import (
    ACROSS,
    COLUMNS,
    GROUPS_EACH,
    LOW_32,
    LOWS_16,
    RECORD,
    RECORDS,
    RESULTS,
    SCALE,
    SUM_32,
    SUMS_16,
    Y_STRIDE,
    Y,
)
from hf2q.backends.cpu.native import peek, settled
from hf2q.backends.cpu.specialise import specialise, specialise_part
from hf2q.backends.cpu.tiles import place
from hf2q.simd import F32, I32, Kernel, Vector, fma, high_half, load, low_half, scratch, spread, store

F, I = F32(8), I32(8)  # noqa: E741
SIXTEEN = F32(16)

SLAB = 256
"""Inputs of a slab: with eight rows some 20 KB, and a whole block of every qtype."""
GROUPS = 32
"""Groups of weights' rows that pass over a slab: enough that making it costs little, few enough for their sums."""
ROOM = 8 * GROUPS

# what `specialise` puts in place for each qtype
SIZE = PACKED = SUBS = WORDS = SHARE = LINES = SLAB_ROOM = ROW = GROUP = 1
SIDE = BIAS = DOWN = NEXT = HALF = 0
SCALE_AT = LOW_AT = BIAS_AT = SUM_AT = LOWS = SUMS = 0
MINIMUMS = RESTORED = False
fill_scales: Any = None
code: Any = None
add: Any = None
ask: Any = None
half_of: Any = None
low: Any = None
high: Any = None
broadcast: Any = None
begin: Any = None
word_of: Any = None
finish: Any = None


def broadcast_of(record: int, x: int) -> None:
    """32 inputs of a row, from their record to eight lanes each at address x, and what belongs to them."""
    for half in range(32 // GROUP):
        biases = I(0)
        for j in range(WORDS):
            word = spread(I, record, 4 * (WORDS * half + j))
            store(x, 32 * (WORDS * half + j), word)
            biases = narrow_step(biases, I(BIAS * 0x01010101), word)
        if BIAS > 0:
            store(x, BIAS_AT + 32 * half, without(I(0), biases))
        if RESTORED:
            store(x, SUM_AT + 32 * half, (I(0) - spread(I, record, SUMS + 4 * half)) >> DOWN)
        if MINIMUMS:
            store(x, LOW_AT + 32 * half, spread(F, record, LOWS + 4 * half))
    store(x, SCALE_AT, spread(F, record, SCALE))


def begin_of(x: int, half: int) -> Vector:
    """What sixteen-bit sums begin with, so that they end as those of codes less `BIAS`, which fit."""
    if BIAS > 0:
        return load(I, x, BIAS_AT + 32 * half)
    return I(0)


def finish_of(acc: int, at: int, sums: Vector, x: int, half: int, scale: Vector, minimum: Vector) -> None:
    """Add what sixteen-bit sums stand for to the float32 ones at acc + at."""
    dot = narrow_close(sums)
    if RESTORED:
        dot = dot + load(I, x, SUM_AT + 32 * half)
    total = fma(F(dot) * load(F, x, SCALE_AT), scale, load(F, acc, at + SIDE))
    if MINIMUMS:
        total = fma(minimum, load(F, x, LOW_AT + 32 * half), total)
    store(acc, at + SIDE, total)


def add_word(sums: Eight, word: Vector, x: int, at: int) -> Eight:
    """Sixteen-bit sums of eight rows, and what one word of weights by four inputs adds to them."""
    s0, s1, s2, s3, s4, s5, s6, s7 = sums
    s0, s1 = narrow_step(s0, word, load(I, x, at)), narrow_step(s1, word, load(I, x, at + ROW))
    s2, s3 = narrow_step(s2, word, load(I, x, at + 2 * ROW)), narrow_step(s3, word, load(I, x, at + 3 * ROW))
    s4, s5 = narrow_step(s4, word, load(I, x, at + 4 * ROW)), narrow_step(s5, word, load(I, x, at + 5 * ROW))
    s6, s7 = narrow_step(s6, word, load(I, x, at + 6 * ROW)), narrow_step(s7, word, load(I, x, at + 7 * ROW))
    return s0, s1, s2, s3, s4, s5, s6, s7


def add_half(
    acc: int, p: int, s: int, x: int, half: int, ahead: int, table: int, scale: Vector, minimum: Vector
) -> None:
    """Eight of the sixteen weights' rows, those of `half_of`; their sums begin at byte `SIDE` of each row's.

    Words follow each other in the source, since LLVM would leave a loop of them.
    """
    first = ask(begin(x, half), ahead)
    sums = (
        first, begin(x + ROW, half), begin(x + 2 * ROW, half), begin(x + 3 * ROW, half),
        begin(x + 4 * ROW, half), begin(x + 5 * ROW, half), begin(x + 6 * ROW, half), begin(x + 7 * ROW, half),
    )  # fmt: skip
    at = 32 * WORDS * half
    sums = word_of(sums, half_of(code(p, s, 0, table)), x, at)
    sums = word_of(sums, half_of(code(p, s, 1, table)), x, at + 32)
    sums = word_of(sums, half_of(code(p, s, 2, table)), x, at + 64)
    sums = word_of(sums, half_of(code(p, s, 3, table)), x, at + 96)
    if WORDS > 4:
        sums = word_of(sums, half_of(code(p, s, 4, table)), x, at + 128)
        sums = word_of(sums, half_of(code(p, s, 5, table)), x, at + 160)
        sums = word_of(sums, half_of(code(p, s, 6, table)), x, at + 192)
        sums = word_of(sums, half_of(code(p, s, 7, table)), x, at + 224)
    scale, minimum = half_of(scale), half_of(minimum)
    s0, s1, s2, s3, s4, s5, s6, s7 = sums
    finish(acc, 0, s0, x, half, scale, minimum)
    finish(acc, 64, s1, x + ROW, half, scale, minimum)
    finish(acc, 128, s2, x + 2 * ROW, half, scale, minimum)
    finish(acc, 192, s3, x + 3 * ROW, half, scale, minimum)
    finish(acc, 256, s4, x + 4 * ROW, half, scale, minimum)
    finish(acc, 320, s5, x + 5 * ROW, half, scale, minimum)
    finish(acc, 384, s6, x + 6 * ROW, half, scale, minimum)
    finish(acc, 448, s7, x + 7 * ROW, half, scale, minimum)


def add_halves(
    acc: int, p: int, s: int, x: tuple[int, int], at: int, half: int, table: int, scales: Vector, minimums: Vector
) -> int:
    """As the `add_…` of `integer_parts`; `acc` is the address of sums, x that of a slab and how far ahead to ask."""
    slab, ahead = x
    here = settled(slab + at)
    low(acc, p, s, here, half, p + ahead + 64 * LINES * s, table, scales[s], minimums[s])
    high(acc, p, s, here, half, 0, table, scales[s], minimums[s])
    return acc


def slab_rows(segment: int, job: int, unit: int) -> None:
    w, group_bytes, rows, table = weights_of(segment)
    columns, across, each = peek(job, COLUMNS), peek(segment, ACROSS), peek(segment, GROUPS_EACH)
    count, source, target = passing_of(segment, unit)
    y, y_stride = peek(job, RESULTS) + peek(segment, Y), peek(segment, Y_STRIDE)
    records, x_stride = peek(job, RECORDS), columns // 32 * RECORD
    scales, mins, acc = scratch(SIXTEEN, SUBS), scratch(SIXTEEN, SUBS), scratch(SIXTEEN, ROOM)
    slab, sums = place(scratch(I, SLAB_ROOM)), place(acc)
    subs = SUBS + (unit >> 62)  # SUBS, but LLVM must not know: it would unroll the loop to no use
    first = unit % across * each
    end = min(first + each, (rows + 15) // 16)
    for g in range(first, end, GROUPS):
        stop = min(g + GROUPS, end)
        for r in range(0, count, 8):
            last = min(8, count - r) - 1
            for n in range(8 * (stop - g)):
                acc[n] = SIXTEEN(0)
            for k in range(0, columns, SLAB):
                here = min(SLAB, columns - k)
                for n in range(8 * (here // 32)):
                    record = records + x_stride * peek(source, r + min(n % 8, last)) + RECORD * (k // 32 + n // 8)
                    broadcast(record, slab + ROW * n)
                for h in range(g, stop):
                    p = w + h * group_bytes + k // SIZE * PACKED
                    # the same inputs of the next group, or the next ones of the first
                    ahead = group_bytes if h + 1 < stop else (g - h) * group_bytes + SLAB // SIZE * PACKED
                    for q in range(0, here, SIZE):
                        fill_scales(p, scales, mins)
                        for s in range(0, subs, SHARE):
                            at = 8 * ROW * ((q + s * GROUP) // 32)
                            add(sums + 512 * (h - g), p, s, (slab, ahead), at, table, scales, mins)
                        p += PACKED
            for h in range(g, stop):
                for n in range(last + 1):
                    put(y + peek(target, r + n) * y_stride + 64 * h, acc[8 * (h - g) + n], rows - 16 * h)


def bias_of(block: Block) -> tuple[int, bool]:
    """What codes are lessened by so that a sub-block's products with signed bytes add up in 16 bits, and whether it is
    to be restored because it is not their offset.
    """

    def fit(largest: int) -> bool:
        return 2 * largest * 127 * (block.group // 4) <= 32767

    if block.offset or fit(block.top):
        bias, restored = block.offset, False
    else:
        bias, restored = (block.top + 1) // 2, True
    assert fit(max(bias, block.top - bias)), block.qtype
    return bias, restored


def slab_kernel(block: Block) -> Kernel[[int, int, int], None]:
    """`slab_rows` of a qtype with narrow codes."""
    bias, restored = bias_of(block)
    by_two = 32 // block.group
    kept_as = 32 if block.group == 16 else 128  # what sums in records are multiplied by, negative
    each, at = 32 * by_two, 288
    places: dict[str, int] = {}
    for name, there in (("LOW_AT", block.minimums), ("BIAS_AT", bias > 0), ("SUM_AT", restored)):
        places[name] = at
        at += each * there
    row = {"ROW": at}
    names: dict[str, Any] = {"MINIMUMS": block.minimums, "RESTORED": restored, "BIAS": bias, "SCALE_AT": 256, **places}
    packed = 16 * block.bytes
    lines = -(-packed * block.group // (64 * block.size))
    suffix = f"{block.qtype}_slab"

    def only(template: Any, suffix: str, **more: Any) -> Any:
        known = {name: value for name, value in names.items() if name in template.__code__.co_names}
        return specialise_part(template, suffix, **known, **more)

    parts = {"begin": only(begin_of, suffix), "code": block.code, "WORDS": block.group // 4, **row}
    parts["word_of"] = specialise_part(add_word, suffix, **row)
    sides = ("low", low_half, 0, asking(lines, far=True, there=True)), ("high", high_half, 32, nothing)
    halves = {
        name: specialise_part(
            add_half,
            f"{suffix}_{name}",
            half_of=half_of,
            ask=ask,
            finish=only(finish_of, f"{suffix}_{name}", SIDE=side),
            **parts,
        )
        for name, half_of, side, ask in sides
    }
    share = max(block.share, by_two)
    spans = {"NEXT": 8 * row["ROW"] if block.group == 32 else 0, "HALF": 1 if block.group == 16 else 0}
    add = specialise_part(add_halves, suffix, LINES=lines, **halves)
    return specialise(
        slab_rows,
        block.qtype,
        add=specialise_part(share_of, suffix, add=add, SHARE=share, **spans),
        SHARE=share,
        SIZE=block.size,
        PACKED=packed,
        SUBS=block.size // block.group,
        GROUP=block.group,
        SLAB_ROOM=SLAB // 32 * 8 * (row["ROW"] // 32),
        fill_scales=block.scales,
        broadcast=only(
            broadcast_of,
            suffix,
            GROUP=block.group,
            WORDS=block.group // 4,
            LOWS=LOWS_16 if block.group == 16 else LOW_32,
            SUMS=SUMS_16 if block.group == 16 else SUM_32,
            DOWN=(kept_as // bias).bit_length() - 1 if restored else 0,
        ),
        **row,
    )
