"""Memory for weights and work: aligned to cache lines, on large pages where the system has them."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ARENA = 1 << 26
"""Bytes of an arena; what is not used of the last one is never made, but for the rest of a large page."""


def aligned(size: int) -> NDArray[np.uint8]:
    """`size` zero bytes that begin at a multiple of 64."""
    whole = np.zeros(size + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]


class Arena:
    """Zero bytes for many weights, one after the other in few large mappings.

    Streaming through weights touches a new page of 4 KiB every few hundred nanoseconds, and each costs a walk through
    page tables. So Linux is asked for large pages; it gives them only inside one mapping, hence the arena. A mapping is
    freed with the last array in it.
    """

    def __init__(self, size: int = ARENA) -> None:
        self._size = size
        self._rest = np.zeros(0, np.uint8)

    def take(self, size: int) -> NDArray[np.uint8]:
        """`size` zero bytes that begin at a multiple of 64."""
        room = -(-size // 64) * 64
        if room > len(self._rest):
            self._rest = _mapping(max(room, self._size))
        taken, self._rest = self._rest[:size], self._rest[room:]
        return taken


def _mapping(size: int) -> NDArray[np.uint8]:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return aligned(size)
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        region.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, np.uint8)


def address(array: NDArray[Any]) -> int:
    """Where the data of an array begins.

    Read where an array object has it, as `teamwork.DATA` explains: an eighth of the time that asking numpy takes, and a
    model asks thousands of times while it loads.
    """
    return ctypes.c_size_t.from_address(id(array) + object.__basicsize__).value
