"""Stacks of matrices with their last two axes swapped, read a few rows at a time.

A row of the result is a column of the source, so its matrix has to be walked through whole. What was walked through is
kept for the next rows of the same matrix: at most `KEPT` matrices in float32, and those that threads are at, for each
tensor that is being read.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from hf2q.rows import View
from hf2q.types import Rows

if TYPE_CHECKING:
    from hf2q.types import Float32

KEPT = 2
STEP = 1 << 18
"""Values that are read at a time while walking through a matrix."""


def transposed(source: Rows, first: int, last: int) -> Rows:
    """(n, a, b) → (n, last - first, a): columns `first` to `last` of every matrix, as rows. Thread-safe."""
    count, height, _ = source.shape
    cache = _Matrices(source, first, last)
    width = last - first

    def read(start: int, stop: int) -> Float32:
        out = np.empty((stop - start, height), np.float32)
        at = start
        while at < stop:
            matrix, row = divmod(at, width)
            end = min(stop, (matrix + 1) * width)
            out[at - start : end - start] = cache.get(matrix)[row : row + end - at]
            at = end
        return out

    # at the seam of two tensors both keep theirs, and every thread may be at one
    return View((count, width, height), source.dtype, read, held=(2 * KEPT + 1) * 4 * width * height)


class _Matrices:
    """Transposed matrices by number, the last few of them."""

    def __init__(self, source: Rows, first: int, last: int) -> None:
        self._source, self._first, self._last = source, first, last
        self._made: dict[int, Future[Float32]] = {}
        self._lock = threading.Lock()

    def get(self, matrix: int) -> Float32:
        """float32 (last - first, a); not to be changed. One thread makes it, others that want it wait."""
        with self._lock:
            found = self._made.get(matrix)
            mine = found is None
            if found is None:
                found = self._made[matrix] = Future()
                while len(self._made) > KEPT:
                    del self._made[min(self._made)]
        if mine:
            try:
                found.set_result(self._make(matrix))
            except BaseException as error:
                found.set_exception(error)
                raise
        return found.result()

    def _make(self, matrix: int) -> Float32:
        _, height, own = self._source.shape
        made = np.empty((self._last - self._first, height), np.float32)
        step = max(1, STEP // own)
        for start in range(0, height, step):
            stop = min(start + step, height)
            block = self._source.read(matrix * height + start, matrix * height + stop)
            made[:, start:stop] = block[:, self._first : self._last].T
        return made
