"""`Paging`: pages of a mapped file are brought into the address space before somebody reads them.

A product that reads weights from a mapped file stops at every sixteenth page, for as long as the product itself takes.
While a tokenizer is read, which keeps one processor busy, another can do this in large pieces.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

from hf2q.backends.cpu.memory import address

if TYPE_CHECKING:
    from hf2q.types import Bytes

POPULATE_READ = 22
"""Source: Linux, include/uapi/asm-generic/mman-common.h, MADV_POPULATE_READ; since 5.14."""
PIECE = 1 << 22
"""Bytes brought in by one call: a fraction of a millisecond when the file is in memory."""


class Paging:
    """A thread that goes through what it was asked for, in order, until it is told to stop.

    Only a hint: elsewhere than on Linux, and where the system does not know how, it does nothing.
    """

    def __init__(self) -> None:
        self._wanted: deque[Bytes] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def ask(self, part: Bytes) -> None:
        """Bring in the pages of a part of a mapped file, some time soon. Nothing after `stop`."""
        if not sys.platform.startswith("linux"):
            return
        with self._lock:
            if self._stopped:
                return
            self._wanted.append(part)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="hf2q-paging", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Let go of everything; returns when the thread touches nothing any more."""
        with self._lock:
            thread, self._thread, self._stopped = self._thread, None, True
            self._wanted.clear()
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        advise = ctypes.CDLL(None).madvise  # ctypes lets go of the GIL, mmap.madvise does not
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        while True:
            with self._lock:
                if not self._wanted:
                    if self._thread is threading.current_thread():
                        self._thread = None
                    return
                part = self._wanted.popleft()
            begin = address(part) // mmap.PAGESIZE * mmap.PAGESIZE
            end = address(part) + part.nbytes
            for at in range(begin, end, PIECE):
                if self._stopped or advise(at, min(PIECE, end - at), POPULATE_READ):
                    return
