"""Products with weights that are still as they are in the file: for the first forward pass of a process.

Repacking a model takes as long as reading it from memory several times, and memory that a process never had is slow
besides. Whoever wants one token soon can do without: each group of sixteen rows is repacked to a buffer in the cache,
multiplied there by the kernel that would have read it from memory, and forgotten. Results are the same bit for bit.
"""

from __future__ import annotations

from hf2q.backends.cpu.job import (
    ACROSS,
    FILE_LEAF,
    GROUP_BYTES,
    GROUPS_EACH,
    IN_FILE,
    ROWS,
    SEGMENT_WORDS,
    WEIGHTS,
    Y,
)
from hf2q.backends.cpu.native import atomic_add, invoke, pause, peek, poke
from hf2q.backends.cpu.repack import BUFFER_BYTES, BUFFER_COUNT, BUFFERS, repack_rows
from hf2q.backends.cpu.tiles import place
from hf2q.simd import I32, INT, inline, kernel, scratch

I = I32(16)  # noqa: E741
HEAD = 64
"""Bytes before a buffer; the first word says whether somebody has it."""


@inline
def claimed(words: int) -> int:
    """The head of a buffer that nobody else has. There are as many as members of the team, so one gets free."""
    buffers, count, size = peek(words, BUFFERS), peek(words, BUFFER_COUNT), peek(words, BUFFER_BYTES)
    while True:
        for k in range(count):
            head: int = buffers + k * size
            if atomic_add(head, 0, 1) == 0:
                return head
            atomic_add(head, 0, -1)
        pause()


@kernel(INT, INT, INT)
def groups_in_file(segment: int, job: int, unit: int) -> None:
    """In place of any other leaf: that is FILE_LEAF, and gets one group at a time. WEIGHTS are those in the file."""
    words, leaf, weights = peek(segment, IN_FILE), peek(segment, FILE_LEAF), peek(segment, WEIGHTS)
    rows, group_bytes, across, each = (
        peek(segment, ROWS),
        peek(segment, GROUP_BYTES),
        peek(segment, ACROSS),
        peek(segment, GROUPS_EACH),
    )
    lines = scratch(I, 2)
    one = place(lines)  # a segment of one group
    for k in range(SEGMENT_WORDS):
        poke(one, k, peek(segment, k))
    head = claimed(words)
    poke(one, WEIGHTS, head + HEAD)
    poke(one, GROUPS_EACH, 1)
    poke(one, ACROSS, 1)
    first, failed = unit % across * each, 0
    for g in range(first, min(first + each, (rows + 15) // 16)):
        here = min(16, rows - 16 * g)
        repack_rows(words, weights + g * group_bytes, head + HEAD, here)
        poke(one, ROWS, here)
        poke(one, Y, peek(segment, Y) + 64 * g)
        failed |= invoke(leaf, one, job, unit // across)
    atomic_add(head, 0, -1)
    if failed:
        raise RuntimeError("a product failed")
