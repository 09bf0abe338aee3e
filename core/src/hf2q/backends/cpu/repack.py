"""From rows as a file holds them to groups of sixteen rows side by side (see `blocks.block`), once, when loading.

On the way scales and numbers are looked at: each byte comes from memory once. Jobs form a chain that whoever has time
works through: `work` goes from job to job, and others may be linked behind the last one meanwhile.
"""

from __future__ import annotations

from hf2q.backends.cpu.ahead import prefetch_far
from hf2q.backends.cpu.native import (
    atomic_add,
    atomic_get,
    atomic_set,
    give_way,
    let_go,
    pause,
    peek,
    peek8,
    peek16,
    peek32,
)
from hf2q.backends.cpu.turn import turn_halves, turn_words
from hf2q.simd import F32, I32, INT, inline, kernel, load, put16, put32, store_u8
from hf2q.simd import bits as bits_of

# words of a job; those that several threads write lie on cache lines of their own
LINK, TAKEN, ENDED, BAD, DONE = 0, 8, 16, 24, 25
"""The next job or 0; units taken and done; whether a number is not finite; whether all is done."""
UNITS, EACH, RAW, ROW_BYTES, ROWS, PACKED, BLOCK_BYTES = 32, 33, 34, 35, 36, 37, 38
"""How many units, of how many groups; source and its row length, how many rows; target, zero before; bytes of a block.
Rows that fill up the last group of sixteen stay zero."""
FIELDS, FIELD_COUNT, CHECKS, CHECK_COUNT = 39, 40, 41, 42
"""Pairs of (unit, how many) and their number; pairs of (kind, byte in the block) of what must be finite, and theirs."""
BUFFERS, BUFFER_COUNT, BUFFER_BYTES = 43, 44, 45
"""Where a group may be put for a moment, and is not kept (see `in_file`): how many places, and bytes of one."""
PAGES, PAGE_BYTES = 46, 47
"""Where whole pages begin that may be let go of at the end, and how many bytes they are."""
WORDS = 48

HALF, E8M0, HALVES, BFLOATS, FLOATS = 0, 1, 2, 3, 4
"""Kinds of checks: a float16, a power of two; all of a row: float16, bfloat16, float32."""

TURN_BYTES = 512
"""What `turn_words` and `turn_halves` read: eight words of sixteen rows."""

SPINS = 200
"""Looks for another job before giving way."""

I, WORD = I32(16), F32(1)  # noqa: E741


@inline
def all_finite(at: int, size: int, low: int, high: int) -> bool:
    """Whether no number in `size` bytes is infinite or NaN; `low` and `high` are infinities in a word of 32 bits.

    The two are equal where one number fills a word.
    """
    k = 0
    found = 0
    while k + 64 <= size:
        v = load(I, at, k)
        found |= bits_of((v & low) == low) | bits_of((v & high) == high)
        k += 64
    while k + 4 <= size:
        word = peek32(at, k)
        if (word & low) == low or (word & high) == high:
            found = 1
        k += 4
    if k < size and (peek16(at, k) & low) == low:  # half a word
        found = 1
    return found == 0


@inline
def finite(job: int, source: int, rows: int) -> bool:
    """Look at what must be finite in the blocks of some rows that begin at `source`; of floats at whole rows."""
    row_bytes, checks = peek(job, ROW_BYTES), peek(job, CHECKS)
    good = True
    for c in range(peek(job, CHECK_COUNT)):
        kind, offset = peek(checks, 2 * c), peek(checks, 2 * c + 1)
        for r in range(rows):
            at = source + r * row_bytes + offset
            if kind == HALF:
                if (peek16(at, 0) & 0x7C00) == 0x7C00:
                    good = False
            elif kind == E8M0:
                if peek8(at, 0) == 255:
                    good = False
            elif kind == HALVES:
                good = good and all_finite(at, row_bytes, 0x7C00, 0x7C000000)
            elif kind == BFLOATS:
                good = good and all_finite(at, row_bytes, 0x7F80, 0x7F800000)
            else:
                good = good and all_finite(at, row_bytes, 0x7F800000, 0x7F800000)
    return good


@inline
def few_fields(at: int, row_bytes: int, target: int, rows: int, size: int, many: int) -> None:
    """`many` neighbouring fields of some rows, one by one."""
    for _ in range(many):
        if size == 4:
            for r in range(rows):
                put32(target, 4 * r, peek32(at, r * row_bytes))
        elif size == 2:
            for r in range(rows):
                put16(target, 2 * r, peek16(at, r * row_bytes))
        else:
            for r in range(rows):
                store_u8(target, r, peek8(at, r * row_bytes))
        at += size
        target += 16 * size


@inline
def asked(at: int) -> int:
    """Ask for the bytes at `at` that are as many as one turn takes; gives where they end."""
    for line in range(0, TURN_BYTES, 64):
        prefetch_far(at, line)
    return at + TURN_BYTES


@inline
def repack_rows(job: int, source: int, target: int, rows: int) -> None:
    """Up to sixteen rows that begin at `source`, side by side to `target`.

    Sixteen rows at a time are more streams than a processor foresees. But they follow each other in memory, and so do
    the sixteen after them: these are asked for meanwhile, in order.
    """
    row_bytes, block_bytes = peek(job, ROW_BYTES), peek(job, BLOCK_BYTES)
    fields, count = peek(job, FIELDS), peek(job, FIELD_COUNT)
    ahead = source + 16 * row_bytes
    end = ahead
    for _ in range(row_bytes // block_bytes):
        if not finite(job, source, rows):
            atomic_set(job, BAD, 1)
        at = source
        for field in range(count):
            size, many = peek(fields, 2 * field), peek(fields, 2 * field + 1)
            if rows == 16 and size == 4 and many >= 8:
                for k in range(0, many, 8):
                    ahead = asked(ahead)
                    here = min(k, many - 8)  # the last eight may overlap those before
                    turn_words(at + 4 * here, row_bytes, target + 64 * here)
            elif rows == 16 and size == 2 and many >= 16:
                for k in range(0, many, 16):
                    ahead = asked(ahead)
                    here = min(k, many - 16)
                    turn_halves(at + 2 * here, row_bytes, target + 32 * here)
            else:
                few_fields(at, row_bytes, target, rows, size, many)
            at += size * many
            target += 16 * size * many
        source += block_bytes
        end += 16 * block_bytes
        while ahead < end:
            ahead = asked(ahead)


@kernel(INT, INT, INT, INT)
def work(job: int, most: int, patience: int, closed: int) -> int:
    """Do up to `most` units of `job` and those linked behind it. Gives the job where it ended.

    At the end of the chain it looks `patience` times for another job, as long as the word at `closed` is 0.
    """
    looks = 0
    while most > 0:
        unit = atomic_add(job, TAKEN, 1)
        if unit < peek(job, UNITS):
            each = peek(job, EACH)
            last = min((unit + 1) * each, (peek(job, ROWS) + 15) // 16)
            for group in range(unit * each, last):
                begin = 16 * group * peek(job, ROW_BYTES)
                rows = min(16, peek(job, ROWS) - 16 * group)
                repack_rows(job, peek(job, RAW) + begin, peek(job, PACKED) + begin, rows)
            if atomic_add(job, ENDED, 1) + 1 == peek(job, UNITS):
                if peek(job, PAGE_BYTES) > 0:
                    let_go(peek(job, PAGES), peek(job, PAGE_BYTES))
                atomic_set(job, DONE, 1)
            most -= 1
            looks = 0
            continue
        following = atomic_get(job, LINK)
        while following == 0 and looks < patience and atomic_get(closed, 0) == 0:
            looks += 1
            if looks < SPINS:
                pause()
            else:
                give_way()
            following = atomic_get(job, LINK)
        if following == 0:
            return job
        job = following
    return job


@kernel(INT, INT)
def publish(job: int, following: int) -> None:
    """Link another job behind one."""
    atomic_set(job, LINK, following)
