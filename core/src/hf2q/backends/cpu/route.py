"""Which rows go through which expert: the segments of a mixture's products, made in one pass over the chosen experts.

Numpy would take a quarter of a millisecond for what a decoding step needs twice per layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hf2q.backends.cpu.job import (
    ACROSS,
    FIRST,
    GROUP_BYTES,
    GROUPS_EACH,
    IN,
    LEAF,
    OUT,
    PASSING,
    ROWS,
    ROWS_EACH,
    SEGMENT_COUNT,
    SEGMENTS,
    TABLE,
    UNITS,
    WEIGHTS,
    Y_STRIDE,
    Y,
)
from hf2q.backends.cpu.native import address_of
from hf2q.simd import INT, kernel, reads, writes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Index = NDArray[np.int64]

# of each stack
PLACE, EXPERT_BYTES, STACK_GROUP_BYTES, STACK_ROWS, GROUPS, STACK_TABLE, ONE, FOUR, EIGHT, MANY, MOST, RESULT = range(
    12
)
"""Its address, bytes of an expert and of a group of rows, rows and groups of an expert, its table; the kernels for one,
up to four, up to eight and more rows and how many rows a unit takes at most; where its results begin, in bytes."""
STACK_WORDS = 12
EIGHT_EACH = 8
"""Groups of a unit that up to eight rows pass, where there are so many: what is prepared for these rows, each unit
prepares anew (see `integer_slab`)."""


@kernel(
    reads("int64", 1),
    INT,
    reads("int64", 2),
    INT,
    INT,
    writes("int64", 1),
    writes("int64", 1),
    writes("int64", 1),
    writes("int64", 2),
    writes("int64", 1),
)
def route(
    experts: Index,
    chosen: int,
    stacks: Index,
    unit_bytes: int,
    units_least: int,
    ends: Index,
    source: Index,
    target: Index,
    segments: Index,
    words: Index,
) -> int:
    """Fill segments, indices and words of a job; gives the place of the words.

    experts (n,): within the length of `ends`, which is zero before. Result i reads row i of x, or row i // chosen where
    `chosen` is not 0. source and target (n,); segments (stacks * n, words of a segment) at least.
    """
    count = len(experts)
    for i in range(count):
        ends[experts[i]] += 1
    total = 0
    for expert in range(len(ends)):
        here = ends[expert]
        ends[expert] = total
        total += here
    for i in range(count):  # afterwards `ends` is what it says
        at = ends[experts[i]]
        target[at] = i
        source[at] = i // chosen if chosen > 0 else i
        ends[experts[i]] = at + 1
    k = unit = 0
    for stack in range(len(stacks)):
        groups, begin = stacks[stack, GROUPS], 0
        for expert in range(len(ends)):
            passing = ends[expert] - begin
            if passing == 0:
                continue
            rows = min(passing, stacks[stack, MOST])
            leaf = ONE if passing == 1 else FOUR if passing <= 4 else EIGHT if passing <= 8 else MANY
            each = unit_bytes // (stacks[stack, STACK_GROUP_BYTES] * rows)
            if leaf == EIGHT:
                each = max(each, EIGHT_EACH)
            each = max(1, min(each, groups // units_least))
            across = (groups + each - 1) // each
            segments[k, LEAF] = stacks[stack, leaf]
            segments[k, WEIGHTS] = stacks[stack, PLACE] + expert * stacks[stack, EXPERT_BYTES]
            segments[k, GROUP_BYTES], segments[k, ROWS] = stacks[stack, STACK_GROUP_BYTES], stacks[stack, STACK_ROWS]
            segments[k, TABLE], segments[k, Y] = stacks[stack, STACK_TABLE], stacks[stack, RESULT]
            segments[k, Y_STRIDE], segments[k, PASSING] = 4 * stacks[stack, STACK_ROWS], passing
            segments[k, IN], segments[k, OUT] = address_of(source) + 8 * begin, address_of(target) + 8 * begin
            segments[k, GROUPS_EACH], segments[k, ROWS_EACH] = each, rows
            segments[k, ACROSS], segments[k, FIRST] = across, unit
            unit += across * ((passing + rows - 1) // rows)
            begin = ends[expert]
            k += 1
    words[SEGMENTS], words[SEGMENT_COUNT], words[UNITS] = address_of(segments), k, unit
    place: int = address_of(words)
    return place
