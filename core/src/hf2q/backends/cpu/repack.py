"""From rows as a file holds them to groups of sixteen rows side by side (see `blocks.block`), once, when loading."""

from __future__ import annotations

from hf2q.backends.cpu.native import peek, peek8, peek16, peek32
from hf2q.simd import INT, kernel, put16, put32, store_u8

# words of a repacking job
RAW, ROW_BYTES, ROWS, PACKED, BLOCK_BYTES, UNITS, UNIT_COUNT = 0, 1, 2, 3, 4, 5, 6
"""Source and its row length, how many rows; target, zero before; bytes of a block; pairs of (unit, how many) and their
number. Rows that fill up the last group of sixteen stay zero."""


@kernel(INT, INT, INT)
def repack(job: int, group: int, unused: int) -> None:
    """Write one group."""
    raw, row_bytes, block_bytes = peek(job, RAW), peek(job, ROW_BYTES), peek(job, BLOCK_BYTES)
    units, count = peek(job, UNITS), peek(job, UNIT_COUNT)
    rows = min(16, peek(job, ROWS) - 16 * group)
    source = raw + 16 * group * row_bytes
    target = peek(job, PACKED) + 16 * group * row_bytes
    for _ in range(row_bytes // block_bytes):
        at = source
        for field in range(count):
            size = peek(units, 2 * field)
            for _word in range(peek(units, 2 * field + 1)):
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
        source += block_bytes
