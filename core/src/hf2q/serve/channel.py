"""`Channel`: how events leave an engine. It is bounded and never waits: what does not fit is dropped and counted."""

from __future__ import annotations

import queue
from typing import Generic, TypeVar

from hf2q.serve.observe import RequestEvent

CAPACITY = 4096
"""Events that may wait for a reader: about a minute of eight busy slots."""

Source = TypeVar("Source")


class Channel(Generic[Source]):
    """Events of several engines, for one reader. `source` says whose an event is.

    dropped  events that were lost since the reader was behind
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._queue: queue.Queue[tuple[Source, RequestEvent] | None] = queue.Queue(capacity)
        self.dropped = 0

    def observer(self, source: Source) -> Tap[Source]:
        """What puts the events of `source` in here: a `hf2q.serve.observe.Observer`."""
        return Tap(self, source)

    def put(self, source: Source, event: RequestEvent) -> None:
        """Hand over an event, or drop it."""
        try:
            self._queue.put_nowait((source, event))
        except queue.Full:
            self.dropped += 1  # two at the same moment may count as one: it is a sign, not an account

    def get(self, timeout: float | None = None) -> tuple[Source, RequestEvent] | None:
        """The next event; None when none came for `timeout` seconds, or the channel was closed."""
        try:
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return None

    def drain(self) -> list[tuple[Source, RequestEvent]]:
        """All events that wait now."""
        found = []
        for _ in range(self._queue.qsize()):
            each = self.get(0)
            if each is not None:
                found.append(each)
        return found

    def close(self) -> None:
        """Let a reader who waits go, as soon as it has read what is there."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self.drain()
            self._queue.put_nowait(None)


class Tap(Generic[Source]):
    """The engine's side of a channel."""

    def __init__(self, channel: Channel[Source], source: Source) -> None:
        self._channel = channel
        self._source = source

    def on(self, event: RequestEvent) -> None:
        """Take note of an event."""
        self._channel.put(self._source, event)
