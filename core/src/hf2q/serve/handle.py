"""`Handle`: one request in the engine, seen by the one who made it: an iterator for threads and for asyncio.

The worker puts events in; a reader takes them out. The buffer between them is bounded: when a reader falls so far
behind that it is full, the request ends with an error. So a slow reader never holds up the worker, nor fills memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator

from hf2q.errors import Hf2qError
from hf2q.serve.events import GenerateRequest, TokenEvent

MOST_EVENTS = 4096
"""Events that may wait for the reader."""

MOST_TEXT = 1 << 20
"""Characters of text that may wait for the reader."""


class Handle:
    """Iterate over it once, with ``for`` in a thread or ``async for`` in a coroutine, until it ends.

    The last event carries `finish_reason`, or iteration raises the error that ended the request: one of the two,
    once. Leaving the loop early does not stop the request; `cancel` does. A reader that lets more than `MOST_EVENTS`
    events or `MOST_TEXT` characters wait gets those, and then an error.

    overrun  what a reader was told that was too slow, else ""
    """

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self._condition = threading.Condition()
        self._events: deque[TokenEvent] = deque()
        self._characters = 0
        self._error: Hf2qError | None = None
        self._ended = False
        self._cancelled = False
        self.overrun = ""
        self._wake: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._woken = False

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
                self._woken = False
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
            event = self._events.popleft()
            self._characters -= len(event.text)
            return event
        error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    # --------------------------------------------------------------------------------------------------- the worker

    def put(self, events: Iterable[TokenEvent]) -> bool:
        """Hand over events; the one with a finish reason ends the request.

        False when they are not wanted: the request had ended already, or ends now, since the reader is too slow
        (`overrun` says so).
        """
        with self._condition:
            if self._ended:
                return False
            for event in events:
                if event.finish_reason is None and self._full(event):
                    self.overrun = (
                        f"the answer is read too slowly: {len(self._events)} pieces of it "
                        f"({self._characters} characters) wait, and no more may"
                    )
                    self._end(Hf2qError(self.overrun, hint="read the answer as it comes"))
                    return False
                self._events.append(event)
                self._characters += len(event.text)
                self._ended = event.finish_reason is not None
            self._notify()
            return True

    def _full(self, event: TokenEvent) -> bool:
        return len(self._events) >= MOST_EVENTS or self._characters + len(event.text) > MOST_TEXT

    def fail(self, error: Hf2qError) -> bool:
        """End the request with an error, unless it has ended. Whether this call ended it."""
        with self._condition:
            if self._ended:
                return False
            self._end(error)
            return True

    def _end(self, error: Hf2qError) -> None:
        self._error, self._ended = error, True
        self._notify()

    def _notify(self) -> None:
        self._condition.notify_all()
        if self._wake is not None and not self._woken:
            loop, wake = self._wake
            self._woken = True  # once is enough until the reader has looked
            with contextlib.suppress(RuntimeError):  # the reader's loop is closed: nobody reads any more
                loop.call_soon_threadsafe(wake.set)
