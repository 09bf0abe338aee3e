"""`Linear`: activations times `Matrix`, by the kernels that fit the number of rows.

One call starts the team once, however many matrices share the activations: they are quantized once.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import numpy as np

from hf2q.backends.cpu import job as w
from hf2q.backends.cpu import route as r
from hf2q.backends.cpu.activations import quantize
from hf2q.backends.cpu.isa import multiplies_tiles
from hf2q.backends.cpu.linear_job import linear_job
from hf2q.backends.cpu.matrix import Matrix, entry_of
from hf2q.backends.cpu.memory import address, aligned
from hf2q.backends.cpu.native import entry
from hf2q.backends.cpu.route import route
from hf2q.backends.cpu.team import Team, Work
from hf2q.backends.cpu.teamwork import ARRAYS
from hf2q.backends.cpu.tiled import TILED_ROWS, to_bfloat16

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hf2q.types import Float32, Shape

    Index = NDArray[np.int64]
    _Stacks = tuple[Index, list[tuple[int, int, int]], int]

UNIT_BYTES = 1 << 16
"""Weights of a unit when few rows pass: small enough to share out, large enough to stream."""
UNITS_EACH = 4
"""Units per member at least, where the matrix has that many groups."""
TILED_FROM = 32
"""Rows from which AMX tiles pay."""
KEPT = 4096
"""Prepared jobs kept."""


class Linear:
    """Products on a team. `exact`: quantized weights as float32 numbers times float32 activations, else int8 codes.

    A row of a result never depends on the other rows of the call (but AMX, from 32 rows on, rounds differently), nor on
    the number of threads. One call at a time goes ahead.
    """

    def __init__(self, team: Team, *, exact: bool = False) -> None:
        self.team = team
        self.exact = exact
        self._lock = threading.Lock()
        self._identity = np.arange(0, dtype=np.int64)
        self._codes: list[NDArray[np.uint8]] = []
        self._tiles = aligned(0)
        self._room = 0
        self._places = [0] * 5
        self._to_codes, self._to_tiles = entry(quantize), entry(to_bfloat16)
        self._ready: dict[tuple[Shape, tuple[Matrix, ...]], _Job] = {}
        self._described: dict[tuple[int, ...], tuple[_Stacks, tuple[Matrix, ...]]] = {}

    def matmul(self, x: Float32, *matrices: Matrix) -> tuple[Float32, ...]:
        """x (..., columns) times each matrix transposed: one (..., rows) for each, float32, each contiguous.

        Errors: ValueError when shapes do not fit.
        """
        x = np.ascontiguousarray(x, np.float32)
        with self._lock:
            ready = self._ready.get((x.shape, matrices))
            if ready is None:
                ready = self._prepare(x.shape, matrices)
            return ready.run(self.team, x)

    def selected(self, x: Float32, experts: NDArray[np.integer], *stacks: Matrix) -> tuple[Float32, ...]:
        """For each stack y[t, k] = x[t] (or x[t, k]) times expert experts[t, k]: (T, K, rows) each.

        x (T, columns) or (T, K, columns); experts (T, K). Only the weights of experts that occur are touched.
        Errors: ValueError when shapes do not fit; IndexError for an expert that does not exist.
        """
        x = np.ascontiguousarray(x, np.float32)
        count, chosen = experts.shape
        flat = np.ascontiguousarray(experts.reshape(-1), np.int64)
        fits = x.shape[:-1] in ((count,), (count, chosen))
        if not fits or any(m.columns != x.shape[-1] for m in stacks):
            raise ValueError(f"{x.shape} and {experts.shape} do not fit stacks {[m.shape for m in stacks]}")
        if flat.size and not 0 <= flat.min() <= flat.max() < min(m.experts for m in stacks):
            raise IndexError(f"expert numbers from {flat.min()} to {flat.max()} of {[m.experts for m in stacks]}")
        x = x.reshape(-1, x.shape[-1])
        with self._lock:
            self._reserve(*x.shape)
            work = Work(linear_job, (0,) * (w.JOB_WORDS - ARRAYS), shared=True)
            words, slots = work.words, np.empty((2, flat.size), np.int64)
            words[w.COUNT], words[w.COLUMNS] = x.shape
            self._quantize(words, stacks)
            segments = np.empty((len(stacks) * flat.size, w.SEGMENT_WORDS), np.int64)
            ends = np.zeros(stacks[0].experts, np.int64)
            each = chosen if x.shape[0] == count != flat.size else 0
            description, pieces, size = self._stacks(flat.size, count, stacks)
            least = UNITS_EACH * self.team.threads
            route(flat, each, description, UNIT_BYTES, least, ends, slots[0], slots[1], segments, words)
            y = np.empty(size, np.float32)
            if flat.size:
                self.team.apply(work, id(x), id(y))
        return tuple([y[a:b].reshape(count, chosen, rows) for a, b, rows in pieces])

    def _stacks(self, results: int, tokens: int, stacks: tuple[Matrix, ...]) -> _Stacks:
        """What `route` wants to know of stacks, where the results of each lie, and how large they are together."""
        found = self._described.get((results, tokens == 1, *map(id, stacks)))
        if found is not None:
            return found[0]
        description = np.zeros((len(stacks), r.STACK_WORDS), np.int64)
        pieces, at = [], 0
        for row, stack in zip(description, stacks, strict=True):
            one, many, most = self._leaves(stack)
            if tokens == 1:  # no expert gets several rows, but for a router that names one twice
                many, most = one, 1
            row[: r.MOST] = (
                stack.address,
                stack.groups * stack.group_bytes,
                stack.group_bytes,
                stack.rows,
                stack.groups,
                stack.table,
                entry_of(stack.qtype, one),
                entry_of(stack.qtype, many),
            )
            row[r.MOST], row[r.RESULT] = most, 4 * at
            pieces.append((at, at + results * stack.rows, stack.rows))
            at += results * stack.rows
        if len(self._described) >= KEPT:
            self._described.clear()
        self._described[results, tokens == 1, *map(id, stacks)] = (description, pieces, at), stacks
        return description, pieces, at

    def rows(self, ids: NDArray[np.integer], matrix: Matrix) -> Float32:
        """Rows of a matrix as float32: ids (n,) -> (n, columns). Errors: IndexError for a row that does not exist."""
        flat = np.ascontiguousarray(ids, np.int64).reshape(-1)
        if flat.size and not 0 <= flat.min() <= flat.max() < matrix.rows:
            raise IndexError(f"rows from {flat.min()} to {flat.max()} of {matrix.rows}")
        job = _Job((0, matrix.columns), flat, (matrix,), [(flat.size, matrix.columns)])
        job.segments[0, w.LEAF], job.segments[0, w.Y_STRIDE] = entry_of(matrix.qtype, "row_values"), 4 * matrix.columns
        job.work.words[w.UNITS] = flat.size
        return job.run(self.team, np.empty((0, matrix.columns), np.float32))[0]

    def _prepare(self, shape: Shape, matrices: tuple[Matrix, ...]) -> _Job:
        """The job of a `matmul`, kept for the next one of these shapes and matrices."""
        if not shape or any(m.experts != 1 or m.columns != shape[-1] for m in matrices):
            raise ValueError(f"{shape} does not fit matrices {[m.shape for m in matrices]}")
        lead, columns, threads = shape[:-1], shape[-1], self.team.threads
        count = math.prod(lead)
        self._reserve(count, columns)
        results = [(*lead, m.rows) for m in matrices]
        job = _Job((count, columns), self._identity[:count], matrices, results)
        tiled = self._tiled(count)
        unit = 0
        for matrix, segment in zip(matrices, job.segments, strict=True):
            one, many, most = self._leaves(matrix)
            rows_each, groups_each = min(count, most), 2
            if tiled and matrix.quantized:
                name, rows_each = "tiled_rows", min(count, TILED_ROWS)
            else:
                name = one if count == 1 else many
                by_size = UNIT_BYTES // (matrix.group_bytes * max(1, rows_each))
                groups_each = max(1, min(by_size, matrix.groups // (UNITS_EACH * threads)))
            across = -(-matrix.groups // groups_each)
            segment[w.LEAF] = entry_of(matrix.qtype, name)
            segment[w.GROUPS_EACH : w.FIRST + 1] = groups_each, rows_each, across, unit
            unit += across * -(-count // max(1, rows_each))
        job.work.words[w.UNITS] = unit
        self._quantize(job.work.words, matrices, tiled=tiled)
        if len(self._ready) >= KEPT:
            self._ready.clear()
        self._ready[shape, matrices] = job
        return job

    def _tiled(self, rows: int) -> bool:
        return rows >= TILED_FROM and not self.exact and multiplies_tiles()

    def _quantize(self, words: Index, matrices: tuple[Matrix, ...], *, tiled: bool = False) -> None:
        """Let a job prepare its activations, if a matrix wants that."""
        if self.exact or not any(m.quantized for m in matrices):
            return
        count, columns = int(words[w.COUNT]), int(words[w.COLUMNS])
        slices = 4 * self.team.threads
        if tiled:
            words[w.PREPARE], words[w.SLICES] = self._to_tiles, min(slices, count)
            words[w.TILES] = self._places[-1]
        else:
            words[w.PREPARE], words[w.SLICES] = self._to_codes, max(1, min(slices, count * columns // 4096))
            words[w.CODES : w.LOWS_32 + 1] = self._places[:-1]

    def _leaves(self, matrix: Matrix) -> tuple[str, str, int]:
        """The kernels for one row and for many, and how many of these a unit takes at most."""
        if not matrix.quantized:
            return "float_row", "float_rows", w.MOST_ROWS
        return ("float_rows", "float_rows", w.MOST_ROWS) if self.exact else ("one_row", "many_rows", w.MOST_ROWS)

    def _reserve(self, rows: int, columns: int) -> None:
        """Room for so many activations; jobs that know the old place are forgotten."""
        if len(self._identity) < rows:
            self._identity = np.arange(max(rows, 2 * len(self._identity)), dtype=np.int64)
            self._ready.clear()
        if self.exact:
            return
        need = (rows + TILED_ROWS) * (2 * columns + 64)  # tiles are read whole, beyond the last row too
        if self._tiled(rows) and need > len(self._tiles):
            self._tiles = aligned(need)
            self._room = 0
        need = rows * columns
        if need > self._room:
            self._room = need = need + need // 4
            blocks = need // 32 + 1
            self._codes = [aligned(size) for size in (need, 4 * blocks, 8 * blocks, 4 * blocks)]
            self._places = [address(buffer) for buffer in (*self._codes, self._tiles)]
            self._ready.clear()


class _Job:
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

    def run(self, team: Team, x: Float32) -> tuple[Float32, ...]:
        single = len(self.pieces) == 1
        y = np.empty(self.pieces[0][2] if single else self.size, np.float32)
        if self.work.words[w.UNITS]:
            team.apply(self.work, id(x), id(y))
        return (y,) if single else tuple([y[a:b].reshape(shape) for a, b, shape in self.pieces])
