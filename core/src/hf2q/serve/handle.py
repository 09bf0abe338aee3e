"""`Handle`: one request in the engine, seen by the one who made it: an iterator for threads and for asyncio.

The worker puts events in; a reader takes them out. Events are few and small (at most one for each token), so the
buffer is not bounded: a slow reader never holds up the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator

from hf2q.errors import Hf2qError
from hf2q.serve.events import GenerateRequest, TokenEvent


class Handle:
    """Iterate over it once, with ``for`` in a thread or ``async for`` in a coroutine, until it ends.

    The last event carries `finish_reason`, or iteration raises the error that ended the request: one of the two,
    once. Leaving the loop early does not stop the request; `cancel` does.
    """

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self._condition = threading.Condition()
        self._events: deque[TokenEvent] = deque()
        self._error: Hf2qError | None = None
        self._ended = False
        self._cancelled = False
        self._wake: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    # --------------------------------------------------------------------------------------------------- the reader

    def cancel(self) -> None:
        """Ask for the end; it comes within one step of the worker. Safe from any thread, at any time."""
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    @property
    def ended(self) -> bool:
        """Whether the worker is done with it; events may still wait to be read."""
        return self._ended

    def __iter__(self) -> Iterator[TokenEvent]:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._events or self._ended)
                event = self._take()
            if event is None:
                return
            yield event

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        wake = asyncio.Event()
        with self._condition:
            self._wake = (asyncio.get_running_loop(), wake)
        while True:
            with self._condition:
                wake.clear()
                waiting = not self._events and not self._ended
                event = None if waiting else self._take()
            if waiting:
                await wake.wait()
            elif event is None:
                return
            else:
                yield event

    def _take(self) -> TokenEvent | None:
        if self._events:
            return self._events.popleft()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    # --------------------------------------------------------------------------------------------------- the worker

    def put(self, events: Iterable[TokenEvent]) -> None:
        """Hand over events; the one with a finish reason ends the request."""
        with self._condition:
            if self._ended:
                return
            for event in events:
                self._events.append(event)
                self._ended = event.finish_reason is not None
            self._notify()

    def fail(self, error: Hf2qError) -> None:
        """End the request with an error, unless it has ended."""
        with self._condition:
            if self._ended:
                return
            self._error, self._ended = error, True
            self._notify()

    def _notify(self) -> None:
        self._condition.notify_all()
        if self._wake is not None:
            loop, wake = self._wake
            with contextlib.suppress(RuntimeError):  # the reader's loop is closed: nobody reads any more
                loop.call_soon_threadsafe(wake.set)
