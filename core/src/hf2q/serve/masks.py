"""`MaskPool`: the masks of constraints, computed while the model works. A slow one holds up its own request alone.

Few daemon threads, started when first needed. One that does not come back is given up, and another takes its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

THREADS = 2
"""At work at once, those given up not counted."""


class Later:
    """A value that a thread computes."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self.begun = self.finished = self.given_up = self.replaced = False  # the pool's, under its lock

    @property
    def done(self) -> bool:
        """Whether it is there."""
        return self._done.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for it, at most so long; whether it is there."""
        return self._done.wait(seconds)

    def result(self) -> Any:
        """The value, waited for. Errors: what the work raised."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def run(self) -> None:
        """Compute it, in this thread."""
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        self._done.set()


class MaskPool:
    """Used by one thread; `close` it, or its threads stay."""

    def __init__(self) -> None:
        self._wanted: SimpleQueue[Later | None] = SimpleQueue()
        self._threads = 0
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], Any]) -> Later:
        """Have it computed."""
        later = Later(work)
        with self._lock:
            start = self._threads < THREADS
            self._threads += start
        if start:
            threading.Thread(target=self._run, name="hf2q-mask", daemon=True).start()
        self._wanted.put(later)
        return later

    def give_up(self, later: Later) -> None:
        """Nobody waits for it any more: when a thread is at it, that thread does not count from here on."""
        with self._lock:
            later.given_up = True
            if later.begun and not later.finished:
                later.replaced = True
                self._threads -= 1

    def close(self) -> None:
        """End the threads; one that is at work ends after it."""
        with self._lock:
            for _ in range(self._threads):
                self._wanted.put(None)

    def _run(self) -> None:
        while (later := self._wanted.get()) is not None:
            if self._begins(later):
                later.run()
                if self._replaced_at(later):
                    return

    def _begins(self, later: Later) -> bool:
        with self._lock:
            later.begun = not later.given_up
            return later.begun

    def _replaced_at(self, later: Later) -> bool:
        """Whether another thread has taken the place of the one that was at it."""
        with self._lock:
            later.finished = True
            return later.replaced
