"""Logging for the program: one handler on stderr for hf2q's own loggers and those of its plugins.

A line that cannot be written (the disk is full, the reader of a pipe has gone) is lost, and nothing else happens.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import TextIO

from hf2q.cli.output import printable
from hf2q.cli.settings import Settings

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


def configure(settings: Settings) -> None:
    """Install the handler. ``--log-level`` wins over ``-v``; without either, warnings and errors are shown."""
    by_count = {0: logging.WARNING, 1: logging.INFO}.get(settings.verbose, logging.DEBUG)
    level = LEVELS[settings.log_level] if settings.log_level else by_count
    handler = StderrHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter(_TEXT))
    handler.addFilter(Own(default=not settings.log_level and not settings.verbose))
    root = logging.getLogger()
    root.handlers[:] = [old for old in root.handlers if not any(isinstance(f, Own) for f in old.filters)]
    root.addHandler(handler)
    root.setLevel(level)


def show_by_default(name: str, level: int) -> None:
    """Show the records of the logger `name` from `level` on, unless the user has said how much to show."""
    filters = [each for handler in logging.getLogger().handlers for each in handler.filters]
    if any(isinstance(each, Own) and each.default for each in filters):
        logging.getLogger(name).setLevel(level)


_UNSEEN = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What JSON may hold as it is, and a terminal or a reader of lines should not."""

_TEXT = "%(levelname).1s %(name)s: %(message)s"


class Own(logging.Filter):
    """Lets through hf2q and its plugins at any level, other libraries only from warnings on.

    `default` is whether the level was left to the program.
    """

    def __init__(self, *, default: bool = False) -> None:
        super().__init__()
        self.default = default

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is shown."""
        return record.name.partition(".")[0].startswith("hf2q") or record.levelno >= logging.WARNING


def writes_json() -> bool:
    """Whether the log is JSON."""
    return any(isinstance(each.formatter, JsonFormatter) for each in logging.getLogger().handlers)


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes a line at once, or not at all: what cannot be written now is not in the way of what comes later."""

    def emit(self, record: logging.LogRecord) -> None:
        """The record as a line."""
        try:
            line = self.format(record)
        except Exception:  # as logging does it: a bad record is no reason to fail
            self.handleError(record)
            return
        say(line, self.stream)


def say(line: str, stream: TextIO | None = None) -> None:
    """Write a line on stderr, or on `stream`, if that is possible."""
    stream = sys.stderr if stream is None else stream
    if stream is None:
        return
    data = f"{line}\n"
    try:
        number = stream.fileno()
    except (OSError, ValueError, AttributeError):  # no file: a test, or a program that hf2q is part of, reads it
        with contextlib.suppress(OSError, ValueError):
            stream.write(data)
        return
    # past the stream's buffer: what cannot be written now must not be in the way of what comes later
    left = memoryview(data.encode("utf-8", "backslashreplace"))
    with contextlib.suppress(OSError):  # full, without a reader, or closed
        while left:
            left = left[os.write(number, left) :]


def notice(text: str) -> None:
    """Say something that no level hides, in the form of the log."""
    if writes_json():
        told = {"name": "hf2q.serve", "levelno": logging.INFO, "levelname": "INFO", "msg": text, "event": "notice"}
        text = JsonFormatter().format(logging.makeLogRecord(told))
    say(text)


class TextFormatter(logging.Formatter):
    """Lines for people. Control characters, which might come from a client or a file, are escaped, and what is not the
    first line of a record is indented.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record, and its traceback if any."""
        return "\n    ".join(printable(line) for line in super().format(record).split("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object for each record: time (seconds since 1970), level, logger, message, and the traceback if any.

    A record with an `event` begins with its name, and has the event's `fields` too.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        told: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = getattr(record, "event", None)
        if event is not None:
            told = {"event": event, **told, **getattr(record, "fields", {})}
        if record.exc_info and record.exc_info[1] is not None:
            told["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        text = json.dumps(told, ensure_ascii=False, default=str)
        return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


QUEUED = 10_000
"""Records that may wait to be written; what comes then is dropped, and counted."""


@contextlib.contextmanager
def in_background() -> Iterator[None]:
    """Write records in a thread of their own: a log that is slow, or stands still, holds up nobody.

    At the end what waits is written, within a second.
    """
    root = logging.getLogger()
    own = [each for each in root.handlers if any(isinstance(f, Own) for f in each.filters)]
    if not own:  # logging was set up by somebody else
        yield
        return
    (handler,) = own
    background = Background(handler)
    root.handlers[root.handlers.index(handler)] = background
    try:
        yield
    finally:
        if background in root.handlers:
            root.handlers[root.handlers.index(background)] = handler
        background.finish(1.0)


class Background(logging.Handler):
    """Hands records to `target` in a thread of its own. dropped: how many could not wait."""

    def __init__(self, target: logging.Handler) -> None:
        super().__init__()
        self.dropped = 0
        self._target = target
        self.filters, self.formatter = target.filters, target.formatter
        self._queue: queue.Queue[logging.LogRecord | None] = queue.Queue(QUEUED)
        self._thread = threading.Thread(target=self._run, name="hf2q-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Let it wait."""
        record.msg, record.args = record.getMessage(), None  # while what it tells of is as it was
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            dropped, self.dropped = self.dropped, 0
            if dropped:
                say(f"W hf2q.cli.logs: {dropped} lines were dropped: they could not be written as fast as they came")
            self._target.handle(record)

    def finish(self, seconds: float) -> None:
        """Write what waits, for at most so long."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
        self._thread.join(seconds)
