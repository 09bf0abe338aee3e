"""`Watchdog`: looks from outside whether the worker is stuck in a piece of work, such as a call of a device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_EVERY = 1.0
"""Most seconds between two looks."""


class Watchdog:
    """A thread that calls `stuck(what, seconds)` once, when a piece of work takes longer than `deadline` seconds.

    There is one piece of work at a time; what goes on between them is not watched.
    """

    def __init__(self, deadline: float, stuck: Callable[[str, float], None]) -> None:
        self.deadline = deadline
        self._stuck = stuck
        self._work: tuple[str, float] | None = None
        self._found = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hf2q-watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def watch(self, what: str) -> Iterator[None]:
        """Around a piece of work; `what` it is, for people. Errors: TimeoutError when it was found stuck meanwhile."""
        self._work = (what, time.monotonic())
        try:
            yield
        finally:
            self._work = None
        if self._found:
            raise TimeoutError(f"{what} came back after it had been given up")

    def stop(self) -> None:
        """Look no more. Safe from any thread, at any time."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(min(LOOK_EVERY, self.deadline / 4)):
            work = self._work
            if work is not None and time.monotonic() - work[1] > self.deadline:
                self._found = True
                self._stuck(work[0], time.monotonic() - work[1])
                return
