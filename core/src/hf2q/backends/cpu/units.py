"""How products are cut: the units of a matrix that members of a team take, and the `Job` that lists them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hf2q.backends.cpu import job as w
from hf2q.backends.cpu.linear_job import linear_job
from hf2q.backends.cpu.matrix import Matrix
from hf2q.backends.cpu.memory import address
from hf2q.backends.cpu.team import Team, Work
from hf2q.backends.cpu.teamwork import ARRAYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hf2q.types import Float32, Shape

    Index = NDArray[np.int64]

UNIT_BYTES = 1 << 16
"""Weights of a unit when few rows pass: small enough to share out, large enough to stream."""
UNITS_EACH = 4
"""Units per member at least, where the matrix has that many groups."""


class Units(NamedTuple):
    """Groups of a matrix, `each` in a unit, and the segment that describes all of it."""

    each: int
    first: int
    groups: int
    segment: Index
    matrix: Matrix


def halved(matrix: Matrix, threads: int) -> list[tuple[int, int, int]]:
    """How to cut a matrix that few rows pass: (first group, groups, groups in a unit).

    Each member streams through half of its share in one go, then through half of what is left, and so on: memory is
    fast where it is read in order, and what a member asks for ahead should be its own. The last units are small, so
    that nobody is waited for.
    """
    pieces, first, least = [], 0, max(1, min(UNIT_BYTES // matrix.group_bytes, matrix.groups // (UNITS_EACH * threads)))
    while (each := (matrix.groups - first) // (2 * threads)) > least:
        pieces.append((first, each * threads, each))
        first += each * threads
    return [*pieces, (first, matrix.groups - first, least)]


class Job:
    """The work of `linear_job`, with one segment for each matrix, and what has to stay alive for it.

    `shape`: rows of x and columns; `rows`: of x to read and of the result to write, for all matrices; `shapes`: of the
    results, which are pieces of one array.
    """

    def __init__(
        self, shape: tuple[int, int], rows: Index, matrices: tuple[Matrix, ...], shapes: Sequence[Shape]
    ) -> None:
        self.work = Work(linear_job, (0,) * (w.JOB_WORDS - ARRAYS), shared=True)
        words = self.work.words
        self.segments = np.zeros((len(matrices), w.SEGMENT_WORDS), np.int64)
        words[w.COUNT], words[w.COLUMNS] = shape
        words[w.SEGMENTS], words[w.SEGMENT_COUNT] = address(self.segments), len(matrices)
        self.pieces: list[tuple[int, int, Shape]] = []
        self.size, place = 0, address(rows)
        for matrix, segment, result in zip(matrices, self.segments, shapes, strict=True):
            segment[w.WEIGHTS : w.ROWS + 1] = matrix.address, matrix.group_bytes, matrix.rows
            segment[w.Y], segment[w.Y_STRIDE], segment[w.TABLE] = 4 * self.size, 4 * result[-1], matrix.table
            segment[w.IN], segment[w.OUT], segment[w.PASSING], segment[w.ACROSS] = place, place, len(rows), 1
            self.pieces.append((self.size, self.size + math.prod(result), result))
            self.size += math.prod(result)
        self._alive = rows, matrices

    def cut(self, units: Sequence[Units]) -> None:
        """Put one segment for each of these in place of one for each matrix."""
        words, unit = self.work.words, 0
        segments = np.array([some.segment for some in units], np.int64)
        for some, segment in zip(units, segments, strict=True):
            across, begin = -(-some.groups // some.each), 16 * some.first
            segment[w.WEIGHTS] += some.first * some.matrix.group_bytes
            segment[w.ROWS] = min(16 * some.groups, some.matrix.rows - begin)
            segment[w.Y] += 4 * begin
            segment[w.GROUPS_EACH], segment[w.ACROSS], segment[w.FIRST] = some.each, across, unit
            unit += across * -(-int(segment[w.PASSING]) // int(segment[w.ROWS_EACH]))
        self.segments = segments
        words[w.SEGMENTS], words[w.SEGMENT_COUNT], words[w.UNITS] = address(segments), len(segments), unit

    def run(self, team: Team, x: Float32) -> tuple[Float32, ...]:
        single = len(self.pieces) == 1
        y = np.empty(self.pieces[0][2] if single else self.size, np.float32)
        if self.work.words[w.UNITS]:
            team.apply(self.work, id(x), id(y))
        return (y,) if single else tuple([y[a:b].reshape(shape) for a, b, shape in self.pieces])
