"""`Linear`: activations times `Matrix`, by the kernels that fit the number of rows.

One call starts the team once, however many matrices share the activations: they are quantized once.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import numpy as np

from hf2q.backends.cpu import job as w
from hf2q.backends.cpu import repack
from hf2q.backends.cpu import route as r
from hf2q.backends.cpu.activations import quantize
from hf2q.backends.cpu.ahead import FAR
from hf2q.backends.cpu.in_file import HEAD, groups_in_file
from hf2q.backends.cpu.isa import multiplies_tiles
from hf2q.backends.cpu.linear_job import linear_job
from hf2q.backends.cpu.matrix import Matrix, entry_of, leaves
from hf2q.backends.cpu.memory import address, aligned
from hf2q.backends.cpu.native import entry
from hf2q.backends.cpu.route import route
from hf2q.backends.cpu.team import Team, Work
from hf2q.backends.cpu.teamwork import ARRAYS
from hf2q.backends.cpu.tiled import SPLIT, TILED_ROWS, to_bfloat16, to_bfloat16_pairs
from hf2q.backends.cpu.units import UNIT_BYTES, UNITS_EACH, Job, Units, halved
from hf2q.simd import LANES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.types import Float32, Shape

    Index = NDArray[np.int64]
    _Stacks = tuple[Index, list[tuple[int, int, int]], int]

FEW = 4, 8
"""Rows that pass together while every weight is read once."""
FEW_ROWS = (4, "few_rows_4"), (8, "few_rows_8"), (16, "slab_rows")
"""Up to how many rows the kernels of quantized weights are the fastest, where a qtype has them."""
TILED_FROM = 32
"""Rows from which AMX tiles pay."""
KEPT = 4096
"""Prepared jobs kept."""


class Linear:
    """Products on a team. `exact`: quantized weights as float32 numbers times float32 activations, else int8 codes.

    A row of a result never depends on the other rows of the call (but AMX, from 32 rows on, rounds differently), nor on
    the number of threads. One call at a time goes ahead. Weights in `in_file` are read there by their first product.
    """

    def __init__(self, team: Team, *, exact: bool = False) -> None:
        self.team = team
        self.exact = exact
        self.lock = threading.Lock()
        self._identity = np.arange(0, dtype=np.int64)
        self._records = self._tiles = aligned(0)
        self._room = 0
        self.generation = 0
        self._to_codes, self._to_tiles = entry(quantize), entry(to_bfloat16)
        self._to_tile_pairs = entry(to_bfloat16_pairs)
        self._ready: dict[tuple[Shape, tuple[Matrix, ...]], Job] = {}
        self._lookups: dict[tuple[int, Matrix], tuple[Job, Index]] = {}
        self._nothing = np.empty((0, 1), np.float32)
        self._described: dict[tuple[int, ...], tuple[_Stacks, tuple[Matrix, ...]]] = {}
        self.in_file: list[Matrix] = []
        self._buffers = aligned(0)
        self.shared = aligned(0).view(np.float32)
        self._failed: BaseException | None = None

    def matmul(self, x: Float32, *matrices: Matrix) -> tuple[Float32, ...]:
        """x (..., columns) times each matrix transposed: one (..., rows) for each, float32, each contiguous.

        Errors: ValueError when shapes do not fit.
        """
        x = np.ascontiguousarray(x, np.float32)
        with self.lock:
            ready = self._ready.get((x.shape, matrices))
            if ready is None:
                ready = self._prepare(x.shape, matrices)
            results = ready.run(self.team, x)
            if self.in_file:
                self.verify(matrices)
            return results

    def verify(self, matrices: tuple[Matrix, ...]) -> None:
        """Look whether all numbers met in those that are `in_file` are finite. Errors: what `Matrix.load` says."""
        for matrix in matrices:
            if matrix.in_file is not None and matrix.in_file.bad:
                matrix.in_file.checked(0, matrix.rows)

    def settle(self) -> None:
        """Repack all weights that are `in_file`, and forget where they were. Under the `lock`.

        Errors: as `verify`, and the same of every product that follows: some weights are nowhere then.
        """
        try:
            for matrix in self.in_file:
                matrix.repack(self.team)
            self.team.loading.finish()
        except BaseException as error:
            self._failed = error
            raise
        self.in_file = []
        self._ready.clear()
        self._lookups.clear()
        self._described.clear()
        self._buffers = aligned(0)
        self.generation += 1

    def _meet(self, matrices: tuple[Matrix, ...], rows: int, *, tiled: bool) -> None:
        """Weights that are in the file serve one product of few rows; for another all are repacked."""
        if self._failed is not None:
            raise self._failed
        self.team.paging.stop()
        waiting = [matrix.in_file for matrix in matrices if matrix.in_file is not None]
        if waiting and (tiled or rows > w.MOST_ROWS or any(source.met for source in waiting)):
            self.settle()
            return
        for source in waiting:
            source.met = True
        # kernels ask for lines beyond the last they read, which must not be those that another member writes
        size = HEAD + max((matrix.group_bytes for matrix in matrices), default=0) + 2 * FAR
        size = -(-size // 64) * 64
        if waiting and size * self.team.threads > len(self._buffers):
            self._buffers = aligned(size * self.team.threads)
        for source in waiting:
            source.buffers = self._buffers
            source.words[repack.BUFFERS :][:3] = address(self._buffers), self.team.threads, size

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
        with self.lock:
            self.reserve(*x.shape)
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
        found = self._described.get((results, tokens, *map(id, stacks)))
        if found is not None:
            return found[0]
        description = np.zeros((len(stacks), r.STACK_WORDS), np.int64)
        pieces, at = [], 0
        for row, stack in zip(description, stacks, strict=True):
            one, many, most = self._leaves(stack)
            few = [self._few(stack, count) or many for count in FEW]
            if tokens == 1:  # no expert gets several rows, but for a router that names one twice
                few, many, most = [one, one], one, 1
            elif tokens <= FEW[-1]:
                many, most = few[-1], FEW[-1]
            row[: r.MOST] = (
                stack.address,
                stack.groups * stack.group_bytes,
                stack.group_bytes,
                stack.rows,
                stack.groups,
                stack.table,
                *(entry_of(stack.qtype, name) for name in (one, *few, many)),
            )
            row[r.MOST], row[r.RESULT] = most, 4 * at
            pieces.append((at, at + results * stack.rows, stack.rows))
            at += results * stack.rows
        if len(self._described) >= KEPT:
            self._described.clear()
        self._described[results, tokens, *map(id, stacks)] = (description, pieces, at), stacks
        return description, pieces, at

    def rows(self, ids: NDArray[np.integer], matrix: Matrix) -> Float32:
        """Rows of a matrix as float32: ids (n,) -> (n, columns). Errors: IndexError for a row that does not exist."""
        flat = np.ascontiguousarray(ids, np.int64).reshape(-1)
        if flat.size and not 0 <= flat.min() <= flat.max() < matrix.rows:
            raise IndexError(f"rows from {flat.min()} to {flat.max()} of {matrix.rows}")
        if (source := matrix.in_file) is not None:
            found = source.codec.decode(np.ascontiguousarray(source.rows[flat]))
            for row in flat[~np.isfinite(found).all(axis=1)].tolist():
                source.checked(row, row + 1)
            return found
        with self.lock:
            kept = self._lookups.get((flat.size, matrix))
            if kept is None:
                kept = self._lookup(flat.size, matrix)
            job, wanted = kept
            wanted[:] = flat
            return job.run(self.team, self._nothing)[0]

    def _lookup(self, count: int, matrix: Matrix) -> tuple[Job, Index]:
        """The job that looks up `count` rows, and the array that says which."""
        wanted = np.empty(count, np.int64)
        job = Job((0, matrix.columns), wanted, (matrix,), [(count, matrix.columns)])
        job.segments[0, w.LEAF], job.segments[0, w.Y_STRIDE] = entry_of(matrix.qtype, "row_values"), 4 * matrix.columns
        job.work.words[w.UNITS], job.work.shared = count, count > 1
        if len(self._lookups) >= KEPT:
            self._lookups.clear()
        self._lookups[count, matrix] = job, wanted
        return job, wanted

    def _prepare(self, shape: Shape, matrices: tuple[Matrix, ...]) -> Job:
        """The job of a `matmul`, kept for the next one of these shapes and matrices."""
        job = self.prepared(shape, matrices)
        if self.in_file:
            return job
        if len(self._ready) >= KEPT:
            self._ready.clear()
        self._ready[shape, matrices] = job
        return job

    def prepared(self, shape: Shape, matrices: tuple[Matrix, ...]) -> Job:
        """A job that is right as long as `generation` stays the same, or once if weights are `in_file`. Under the
        `lock`.
        """
        if not shape or any(m.experts != 1 or m.columns != shape[-1] for m in matrices):
            raise ValueError(f"{shape} does not fit matrices {[m.shape for m in matrices]}")
        lead, columns, threads = shape[:-1], shape[-1], self.team.threads
        count = math.prod(lead)
        self.reserve(count, columns)
        tiled = self._tiled(count) and columns % 32 == 0
        if self.in_file:
            self._meet(matrices, count, tiled=tiled)
        results = [(*lead, m.rows) for m in matrices]
        job = Job((count, columns), self._identity[:count], matrices, results)
        units: list[Units] = []
        for matrix, segment in zip(matrices, job.segments, strict=True):
            one, many, most = self._leaves(matrix)
            few = self._few(matrix, count)
            if tiled and (matrix.quantized or matrix.qtype in SPLIT):
                name, rows_each, pieces = "tiled_rows", min(count, TILED_ROWS), [(0, matrix.groups, 2)]
            elif few or count <= FEW[-1]:
                name, rows_each, pieces = few, max(1, count), halved(matrix, threads)
                if count <= 1:
                    name = one
                elif not few and not matrix.table and (name := self._few(matrix, FEW[0])):
                    rows_each = FEW[0]  # reading codes twice is faster than unpacking them, if none is looked up
                name = name or many
            else:
                name, rows_each = many, min(count, most)
                each = min(UNIT_BYTES // (matrix.group_bytes * rows_each), matrix.groups // (UNITS_EACH * threads))
                pieces = [(0, matrix.groups, max(1, each))]
            segment[w.LEAF], segment[w.ROWS_EACH] = entry_of(matrix.qtype, name), rows_each
            if matrix.in_file is not None:
                segment[w.FILE_LEAF], segment[w.LEAF] = segment[w.LEAF], entry(groups_in_file)
                segment[w.IN_FILE] = address(matrix.in_file.words)
            units += [Units(each, first, groups, segment, matrix) for first, groups, each in pieces]
        units.sort(key=lambda some: -some.each * some.matrix.group_bytes)  # the last to be taken are small
        job.cut(units)
        self._quantize(job.work.words, matrices, tiled=tiled)
        return job

    @property
    def tiles(self) -> bool:
        """Whether products of many rows go through tiles, which want all that there are."""
        return not self.exact and multiplies_tiles()

    def _tiled(self, rows: int) -> bool:
        return rows >= TILED_FROM and self.tiles

    def _quantize(self, words: Index, matrices: tuple[Matrix, ...], *, tiled: bool = False) -> None:
        """Let a job prepare its activations, if a matrix wants that."""
        split = tiled and any(m.qtype in SPLIT for m in matrices)
        if self.exact or not (split or any(m.quantized for m in matrices)):
            return
        count, columns = int(words[w.COUNT]), int(words[w.COLUMNS])
        slices = 4 * self.team.threads
        if tiled:
            words[w.PREPARE] = self._to_tile_pairs if split else self._to_tiles
            words[w.SLICES], words[w.TILES] = min(slices, count), address(self._tiles)
        else:
            words[w.PREPARE], words[w.SLICES] = self._to_codes, max(1, min(slices, count * columns // 4096))
            words[w.RECORDS] = address(self._records)

    def _leaves(self, matrix: Matrix) -> tuple[str, str, int]:
        """The kernels for one row and for many, and how many of these a unit takes at most."""
        if not matrix.quantized:
            return "float_row", "float_rows", w.MOST_ROWS
        return ("float_rows", "float_rows", w.MOST_ROWS) if self.exact else ("one_row", "many_rows", w.MOST_ROWS)

    def _few(self, matrix: Matrix, count: int) -> str:
        """The kernel for few rows that pass together, where the processor has registers for their sums; or ""."""
        if not matrix.quantized:  # with four lanes unpacking takes longest, and is done once
            return "few_floats" if LANES >= 8 and count <= FEW[-1] else ""
        known = {} if self.exact else leaves(matrix.qtype)
        return next((name for most, name in FEW_ROWS if count <= most and name in known), "")

    def reserve(self, rows: int, columns: int, shared: int = 0) -> None:
        """Room for so many activations, and for `shared` float32 numbers in `self.shared`: what is handed on inside one
        call under the lock, the same place for every layer. Jobs that know an old place are forgotten.
        """
        if shared > len(self.shared):
            self.shared = aligned(4 * (shared + shared // 4)).view(np.float32)
            self.generation += 1
        if len(self._identity) < rows:
            self._identity = np.arange(max(rows, 2 * len(self._identity)), dtype=np.int64)
            self._ready.clear()
        if self.exact:
            return
        need = 2 * (rows + TILED_ROWS) * (2 * columns + 64)  # tiles are read whole, beyond the last row too; and rests
        if self._tiled(rows) and need > len(self._tiles):
            self._tiles = aligned(need)
            self._room = 0
        need = rows * columns
        if need > self._room:
            self._room = need + need // 4
            self._records = aligned(w.RECORD * -(-self._room // 32))
            self._ready.clear()
            self.generation += 1
