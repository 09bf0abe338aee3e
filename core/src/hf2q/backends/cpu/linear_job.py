"""The kernel that members of a team run to multiply: prepare the activations, then take units of the segments."""

from __future__ import annotations

from hf2q.backends.cpu.job import (
    FIRST,
    LEAF,
    PREPARE,
    SEGMENT_COUNT,
    SEGMENT_WORDS,
    SEGMENTS,
    SLICES,
    UNITS,
)
from hf2q.backends.cpu.native import invoke, peek
from hf2q.backends.cpu.teamwork import barrier, take
from hf2q.simd import INT, kernel


@kernel(INT, INT, INT)
def linear_job(job: int, member: int, team: int) -> None:
    """See `hf2q.backends.cpu.job` for what `job` points to."""
    prepare = peek(job, PREPARE)
    if prepare:
        slices = peek(job, SLICES)
        part = take(team, 0)
        while part < slices:
            if invoke(prepare, job, part, 0):
                raise RuntimeError("preparing activations failed")
            part = take(team, 0)
        barrier(team)
    count, units = peek(job, SEGMENT_COUNT), peek(job, UNITS)
    segment = peek(job, SEGMENTS)
    last = segment + 8 * SEGMENT_WORDS * (count - 1)
    unit = take(team, 1)
    while unit < units:
        while segment < last and peek(segment + 8 * SEGMENT_WORDS, FIRST) <= unit:
            segment += 8 * SEGMENT_WORDS
        if invoke(peek(segment, LEAF), segment, job, unit - peek(segment, FIRST)):
            raise RuntimeError("a product failed")
        unit = take(team, 1)
