"""Steps that belong together: giving a finished output its names and its receipt is not left half done by a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals by which users and systems end a program; not all systems have all."""


@contextmanager
def unbroken() -> Iterator[None]:
    """Signals that end a program wait until the `with` statement is done, and then do what they would have done.

    Elsewhere than in the main thread, where Python calls no handlers, and for signals that Python does not handle,
    this does nothing.
    """
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    before = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    try:
        for number in before:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)
