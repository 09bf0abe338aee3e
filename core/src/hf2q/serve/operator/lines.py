"""`Lines`: what log handlers write to while the dashboard is on the screen, instead of the terminal itself.

The writer never waits: lines go into a bounded queue, and the thread that draws prints them above the table.
"""

from __future__ import annotations

import io
import logging
import queue
from typing import TextIO

CAPACITY = 2000


class Lines(io.TextIOBase):
    """A text stream whose lines are taken out elsewhere. `dropped` counts lines that had no room."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        super().__init__()
        self._queue: queue.Queue[str] = queue.Queue(capacity)
        self.dropped = 0

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Take text, whole lines as log handlers write them."""
        for line in text.splitlines():
            try:
                self._queue.put_nowait(line)
            except queue.Full:
                self.dropped += 1
        return len(text)

    def drain(self) -> list[str]:
        """The lines that wait now."""
        found = []
        for _ in range(self._queue.qsize()):
            try:
                found.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return found


class Diverted:
    """While it is entered, log handlers that write to `stream` write to `lines`."""

    def __init__(self, stream: TextIO, lines: Lines) -> None:
        self._stream = stream
        self._lines = lines
        self._handlers: list[logging.StreamHandler[TextIO]] = []

    def __enter__(self) -> None:
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is self._stream:
                handler.setStream(self._lines)
                self._handlers.append(handler)

    def __exit__(self, *_: object) -> None:
        for handler in self._handlers:
            handler.setStream(self._stream)
        self._handlers.clear()
