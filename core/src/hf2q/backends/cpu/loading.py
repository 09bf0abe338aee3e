"""`Loading`: weights are repacked by other threads while the calling one goes on with what else loading takes.

Nobody may read a weight before `finish`; a `Team` calls it before it runs anything.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hf2q.backends.cpu import repack as w
from hf2q.backends.cpu.memory import address, aligned

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.types import Bytes

    Words = NDArray[np.int64]

UNIT_BYTES = 1 << 18
"""Bytes of the source in a unit, and at least sixteen rows."""
AT_ONCE = 32
"""Units that the calling thread does before it lets go of what is finished."""
PATIENCE = 20000
"""Looks of a thread for more work: some milliseconds."""
ENDLESS = 1 << 60


class Piece(NamedTuple):
    """Some rows of a weight on the way.

    checked  is called when a number among them is not finite, and raises
    """

    words: Words
    source: Bytes
    target: Bytes
    fields: Words
    checks: Words
    checked: Callable[[], None]

    @property
    def finished(self) -> bool:
        return bool(self.words[w.DONE])


class Loading:
    """Threads beside the calling one: one fewer than `threads`, as long as there is work. One caller at a time."""

    def __init__(self, threads: int) -> None:
        self._helpers = threads - 1
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._closed: Words = np.zeros(1, np.int64)
        self._chain: list[Words] = []  # all that a thread may still look at
        self._pending: deque[Piece] = deque()
        self._at = 0
        self.busy = False

    def put(
        self,
        source: Bytes,
        target: Bytes,
        block_bytes: int,
        fields: Words,
        checks: Words,
        checked: Callable[[], None],
        *,
        mapped: bool = False,
    ) -> None:
        """Repack `source`, uint8 (rows, bytes per row), contiguous, to `target`, whole groups of sixteen rows.

        fields and checks (n, 2) as `repack` wants them. `mapped`: pages of the source are let go of as soon as they
        have been read. Errors: what `checked` of an earlier piece raises.
        """
        words = aligned(8 * w.WORDS).view(np.int64)
        rows, row_bytes = source.shape
        groups = -(-rows // 16)
        each = max(1, UNIT_BYTES // (16 * row_bytes))
        words[w.UNITS :][:7] = -(-groups // each), each, address(source), row_bytes, rows, address(target), block_bytes
        words[w.FIELDS :][:4] = address(fields), len(fields), address(checks), len(checks)
        if mapped:  # pages shared with neighbours stay
            begin = -(-address(source) // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (address(source) + source.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
            words[w.PAGES :][:2] = begin, max(0, end - begin)
        with self._lock:
            if self._chain:
                w.publish(address(self._chain[-1]), address(words))
            else:
                self._at = address(words)
            self._chain.append(words)
            self._pending.append(Piece(words, source, target, fields, checks, checked))
            self.busy = True
            try:
                self._collect()
            except BaseException:
                self._stop()
                raise
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            while len(self._threads) < self._helpers:
                first = address(self._pending[0].words if self._pending else words)
                thread = threading.Thread(target=self._help, args=(first,), name="hf2q-loading", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _help(self, first: int) -> None:
        w.work.compile().call(first, ENDLESS, PATIENCE, address(self._closed))

    def finish(self) -> None:
        """Return when all weights are there. Errors: what the first `checked` raises; the rest is given up then."""
        with self._lock:
            if not self.busy:
                return
            call, closed = w.work.compile().call, address(self._closed)
            try:
                while self._pending:
                    self._at = call(self._at, AT_ONCE, 0, closed)
                    if not self._collect():
                        time.sleep(0)
            finally:
                self._stop()

    def give_up(self) -> None:
        """What is not there yet never comes."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        """Wait for the threads, which end with the piece they are at."""
        for piece in self._pending:  # given up: nothing is left to take
            piece.words[w.TAKEN] = piece.words[w.UNITS]
        self._closed[0] = 1
        for thread in self._threads:
            thread.join()
        self._closed[0] = 0
        self._threads, self._chain = [], []
        self._pending.clear()
        self.busy = False

    def _collect(self) -> int:
        """Let go of finished pieces, in order; how many there were."""
        count = 0
        while self._pending and self._pending[0].finished:
            piece = self._pending.popleft()
            if piece.words[w.BAD]:
                piece.checked()
                raise RuntimeError("a number among the weights is not finite, but was not found again")
            count += 1
        return count
