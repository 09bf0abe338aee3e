"""Weights times activations in float32: F32, F16 and BF16 matrices always, quantized ones in exact mode.

Weights are unpacked to the very float32 numbers that the file encodes, and a sum is taken input by input within a step
of 256 inputs, step by step beyond. That order holds for one row as for many, and for every vector width.
"""

from __future__ import annotations

from typing import Any

from hf2q.backends.cpu.ahead import FAR, prefetch_far
from hf2q.backends.cpu.blocks import Block
from hf2q.backends.cpu.bytes import WIDE_FLIP
from hf2q.backends.cpu.integer_parts import passing_of, put, rows_8, weights_of
from hf2q.backends.cpu.job import (
    ACROSS,
    COLUMNS,
    GROUP_BYTES,
    GROUPS_EACH,
    IN,
    MOST_ROWS,
    OUT,
    RESULTS,
    ROWS,
    STEP,
    TABLE,
    WEIGHTS,
    Y_STRIDE,
    X,
    Y,
)
from hf2q.backends.cpu.native import peek
from hf2q.backends.cpu.specialise import specialise, specialise_part
from hf2q.simd import (
    F32,
    I32,
    LANES,
    Kernel,
    Vector,
    as_float,
    as_int,
    fma,
    from_half,
    inline,
    load,
    load_u16,
    lshr,
    prefetch,
    put32,
    scratch,
    spread,
)

F, I = F32(16), I32(16)  # noqa: E741

# what `specialise` puts in place for each qtype
SIZE = PACKED = GROUP = WORDS = SUBS = STEP_BYTES = UNIT = 1
OFFSET = FLIP = 0
MINIMUMS = False
fill_scales: Any = None
code: Any = None
unpack: Any = None
read: Any = None
four: Any = None


@inline
def read_f32(p: int, k: int) -> Vector:
    return load(F, p, 64 * k)


@inline
def read_f16(p: int, k: int) -> Vector:
    return from_half(load_u16(I, p, 32 * k))


@inline
def read_bf16(p: int, k: int) -> Vector:
    return as_float(load_u16(I, p, 32 * k) << 16)


READERS = {"F32": (4, read_f32), "F16": (2, read_f16), "BF16": (2, read_bf16)}


def unpack_floats(panel: Vector, p: int, count: int, table: int) -> None:
    """panel[k] = input k of sixteen rows, for `count` inputs from address p on."""
    for k in range(count):
        panel[k] = read(p, k)


def unpack_codes(panel: Vector, p: int, count: int, table: int) -> None:
    """The same for blocks."""
    scales, minimums = scratch(F, SUBS), scratch(F, SUBS)
    for k in range(0, count, SIZE):
        fill_scales(p, scales, minimums)
        for s in range(SUBS):
            scale = scales[s]
            for j in range(WORDS):
                word = code(p, s, j, table) ^ FLIP
                for i in range(4):
                    v = F((lshr(word, 8 * i) & 255) - OFFSET) * scale
                    if MINIMUMS:
                        v = v - minimums[s]
                    panel[k + GROUP * s + 4 * j + i] = v
        p += PACKED


@inline
def add_six(panel: Vector, acc: Vector, r: int, count: int, x: int, index: int, stride: int) -> None:
    """acc[r + i] += row i of x times the panel, for six rows: as many sums as fit the registers of AVX2."""
    x0, x1, x2 = x + peek(index, 0) * stride, x + peek(index, 1) * stride, x + peek(index, 2) * stride
    x3, x4, x5 = x + peek(index, 3) * stride, x + peek(index, 4) * stride, x + peek(index, 5) * stride
    a0 = a1 = a2 = a3 = a4 = a5 = F(0)
    for k in range(count):
        w, at = panel[k], 4 * k
        a0, a1, a2 = fma(w, spread(F, x0, at), a0), fma(w, spread(F, x1, at), a1), fma(w, spread(F, x2, at), a2)
        a3, a4, a5 = fma(w, spread(F, x3, at), a3), fma(w, spread(F, x4, at), a4), fma(w, spread(F, x5, at), a5)
    acc[r], acc[r + 1], acc[r + 2] = acc[r] + a0, acc[r + 1] + a1, acc[r + 2] + a2
    acc[r + 3], acc[r + 4], acc[r + 5] = acc[r + 3] + a3, acc[r + 4] + a4, acc[r + 5] + a5


@inline
def add_two(panel: Vector, acc: Vector, r: int, count: int, x: int, index: int, stride: int) -> None:
    """The same for two rows."""
    x0, x1 = x + peek(index, 0) * stride, x + peek(index, 1) * stride
    a0 = a1 = F(0)
    for k in range(count):
        a0, a1 = fma(panel[k], spread(F, x0, 4 * k), a0), fma(panel[k], spread(F, x1, 4 * k), a1)
    acc[r], acc[r + 1] = acc[r] + a0, acc[r + 1] + a1


@inline
def add_one(panel: Vector, acc: Vector, r: int, count: int, x: int, index: int, stride: int) -> None:
    """The same for one row."""
    row = x + peek(index, 0) * stride
    a = F(0)
    for k in range(count):
        a = fma(panel[k], spread(F, row, 4 * k), a)
    acc[r] = acc[r] + a


def float_rows(segment: int, job: int, unit: int) -> None:
    w, group_bytes, rows, table = weights_of(segment)
    columns, across, each = peek(job, COLUMNS), peek(segment, ACROSS), peek(segment, GROUPS_EACH)
    count, source, target = passing_of(segment, unit)
    x, y, stride = peek(job, X), peek(job, RESULTS) + peek(segment, Y), peek(segment, Y_STRIDE)
    panel, acc = scratch(F, STEP), scratch(F, MOST_ROWS)
    first = unit % across * each
    for g in range(first, min(first + each, (rows + 15) // 16)):
        p = w + g * group_bytes
        for r in range(count):
            acc[r] = F(0)
        for k in range(0, columns, STEP):
            here = min(STEP, columns - k)
            unpack(panel, p, here, table)
            r = 0
            while r + 6 <= count:
                add_six(panel, acc, r, here, x + 4 * k, source + 8 * r, 4 * columns)
                r += 6
            while r + 2 <= count:
                add_two(panel, acc, r, here, x + 4 * k, source + 8 * r, 4 * columns)
                r += 2
            if r < count:
                add_one(panel, acc, r, here, x + 4 * k, source + 8 * r, 4 * columns)
            p += STEP_BYTES
        for r in range(count):
            put(y + peek(target, r) * stride + 64 * g, acc[r], rows - 16 * g)


def few_floats(segment: int, job: int, unit: int) -> None:
    """Up to eight rows, the last repeated where there are fewer; every weight is read once, into a register."""
    w, group_bytes, rows = peek(segment, WEIGHTS), peek(segment, GROUP_BYTES), peek(segment, ROWS)
    columns, across, each = peek(job, COLUMNS), peek(segment, ACROSS), peek(segment, GROUPS_EACH)
    count, source, target = passing_of(segment, unit)
    last = count - 1
    y, stride = peek(job, RESULTS) + peek(segment, Y), peek(segment, Y_STRIDE)
    x0, x1, x2, x3, x4, x5, x6, x7 = rows_8(peek(job, X), 4 * columns, source, last)
    acc = scratch(F, 8)
    first = unit % across * each
    for g in range(first, min(first + each, (rows + 15) // 16)):
        p = w + g * group_bytes
        for r in range(8):
            acc[r] = F(0)
        for k in range(0, columns, STEP):
            a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = F(0)
            for i in range(min(STEP, columns - k)):
                prefetch_far(p, 16 * UNIT * i + FAR)
                v, at = read(p, i), 4 * (k + i)
                a0, a1 = fma(v, spread(F, x0, at), a0), fma(v, spread(F, x1, at), a1)
                a2, a3 = fma(v, spread(F, x2, at), a2), fma(v, spread(F, x3, at), a3)
                a4, a5 = fma(v, spread(F, x4, at), a4), fma(v, spread(F, x5, at), a5)
                a6, a7 = fma(v, spread(F, x6, at), a6), fma(v, spread(F, x7, at), a7)
            acc[0], acc[1], acc[2], acc[3] = acc[0] + a0, acc[1] + a1, acc[2] + a2, acc[3] + a3
            acc[4], acc[5], acc[6], acc[7] = acc[4] + a4, acc[5] + a5, acc[6] + a6, acc[7] + a7
            p += STEP_BYTES
        for r in range(last + 1):
            put(y + peek(target, r) * stride + 64 * g, acc[r], rows - 16 * g)


def add_four(p: int, acc: Vector, r: int, count: int, x: int, index: int, stride: int, ahead: int, last: int) -> None:
    """acc[r + i] += row i of x times the weights at p, for four rows; asks for weights that are `ahead`, if not 0."""
    x0, x1 = x + peek(index, min(r, last)) * stride, x + peek(index, min(r + 1, last)) * stride
    x2, x3 = x + peek(index, min(r + 2, last)) * stride, x + peek(index, min(r + 3, last)) * stride
    a0 = a1 = a2 = a3 = F(0)
    for i in range(count):
        if ahead > 0:
            prefetch_far(p, 16 * UNIT * i + ahead)
        v, at = read(p, i), 4 * i
        a0, a1 = fma(v, spread(F, x0, at), a0), fma(v, spread(F, x1, at), a1)
        a2, a3 = fma(v, spread(F, x2, at), a2), fma(v, spread(F, x3, at), a3)
    acc[r], acc[r + 1], acc[r + 2], acc[r + 3] = acc[r] + a0, acc[r + 1] + a1, acc[r + 2] + a2, acc[r + 3] + a3


def few_floats_by_four(segment: int, job: int, unit: int) -> None:
    """As `few_floats`, where there are registers for the sums of four rows: a step of weights is read from the cache
    for the others.
    """
    w, group_bytes, rows = peek(segment, WEIGHTS), peek(segment, GROUP_BYTES), peek(segment, ROWS)
    columns, across, each = peek(job, COLUMNS), peek(segment, ACROSS), peek(segment, GROUPS_EACH)
    count, source, target = passing_of(segment, unit)
    last = count - 1
    x, y, stride = peek(job, X), peek(job, RESULTS) + peek(segment, Y), peek(segment, Y_STRIDE)
    acc = scratch(F, 8)
    first = unit % across * each
    for g in range(first, min(first + each, (rows + 15) // 16)):
        p = w + g * group_bytes
        for r in range(8):
            acc[r] = F(0)
        for k in range(0, columns, STEP):
            here = min(STEP, columns - k)
            four(p, acc, 0, here, x + 4 * k, source, 4 * columns, FAR, last)
            if last > 3:
                four(p, acc, 4, here, x + 4 * k, source, 4 * columns, 0, last)
            p += STEP_BYTES
        for r in range(last + 1):
            put(y + peek(target, r) * stride + 64 * g, acc[r], rows - 16 * g)


def float_row(segment: int, job: int, unit: int) -> None:
    w, group_bytes, rows = peek(segment, WEIGHTS), peek(segment, GROUP_BYTES), peek(segment, ROWS)
    columns, across, each = peek(job, COLUMNS), peek(segment, ACROSS), peek(segment, GROUPS_EACH)
    passing = unit // across
    x = peek(job, X) + peek(peek(segment, IN), passing) * 4 * columns
    y = peek(job, RESULTS) + peek(segment, Y) + peek(peek(segment, OUT), passing) * peek(segment, Y_STRIDE)
    first = unit % across * each
    last = min(first + each, (rows + 15) // 16)
    for g in range(first, last, 2):  # two groups at once: two sums that do not wait for each other
        p = w + g * group_bytes
        q = w + min(g + 1, last - 1) * group_bytes
        a = b = F(0)
        for k in range(0, columns, STEP):
            here = min(STEP, columns - k)
            c = d = F(0)
            for i in range(here):
                v = spread(F, x, 4 * (k + i))
                prefetch(p, 16 * UNIT * (i + 128))
                prefetch(q, 16 * UNIT * (i + 128))
                c, d = fma(read(p, i), v, c), fma(read(q, i), v, d)
            a, b = a + c, b + d
            p += STEP_BYTES
            q += STEP_BYTES
        put(y + 64 * g, a, rows - 16 * g)
        if g + 1 < last:
            put(y + 64 * (g + 1), b, rows - 16 * (g + 1))


def row_values(segment: int, job: int, unit: int) -> None:
    """Row IN[unit] of the matrix, unpacked to row `unit` of y."""
    row, columns = peek(peek(segment, IN), unit), peek(job, COLUMNS)
    p = peek(segment, WEIGHTS) + row // 16 * peek(segment, GROUP_BYTES)
    y = peek(job, RESULTS) + peek(segment, Y) + unit * peek(segment, Y_STRIDE)
    panel, bits = scratch(F, STEP), scratch(I, 1)
    lane = row % 16
    for k in range(0, columns, STEP):
        here = min(STEP, columns - k)
        unpack(panel, p, here, peek(segment, TABLE))
        for i in range(here):
            bits[0] = as_int(panel[i])
            put32(y, 4 * (k + i), bits[0, lane])
        p += STEP_BYTES


def float_kernels(qtype: str) -> dict[str, Kernel[[int, int, int], None]]:
    """`float_row`, `few_floats`, `float_rows` and `row_values` of F32, F16 or BF16."""
    unit, reader = READERS[qtype]
    step = {"STEP_BYTES": 16 * unit * STEP}
    each = {"read": reader, "UNIT": unit}
    names = {"unpack": specialise_part(unpack_floats, qtype, read=reader), **step}
    by_four = {"four": specialise_part(add_four, qtype, **each), **step}
    return {
        "float_row": specialise(float_row, qtype, **each, **step),
        "few_floats": specialise(few_floats, qtype, **each, **step)
        if LANES == 16
        else specialise(few_floats_by_four, qtype, **by_four),
        "float_rows": specialise(float_rows, qtype, **names),
        "row_values": specialise(row_values, qtype, **names),
    }


def exact_kernels(block: Block) -> dict[str, Kernel[[int, int, int], None]]:
    """`float_rows` and `row_values` of a qtype of blocks."""
    names = {"unpack": unpacking(block), "STEP_BYTES": STEP // block.size * 16 * block.bytes}
    return {
        "float_rows": specialise(float_rows, block.qtype, **names),
        "row_values": specialise(row_values, block.qtype, **names),
    }


def unpacking(block: Block) -> Any:
    """The part that unpacks codes of a qtype to a panel."""
    wide = block.top == 0
    return specialise_part(
        unpack_codes,
        block.qtype,
        SIZE=block.size,
        PACKED=16 * block.bytes,
        GROUP=block.group,
        WORDS=block.group // 4,
        SUBS=block.size // block.group,
        FLIP=WIDE_FLIP ^ -0x7F7F7F80 if wide else 0,  # signed bytes + 128
        OFFSET=128 if wide else block.offset,
        MINIMUMS=block.minimums,
        fill_scales=block.scales,
        code=block.code,
    )
