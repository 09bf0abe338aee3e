"""Logging for the program: one handler on stderr for hf2q's own loggers and those of its plugins."""

from __future__ import annotations

import json
import logging
import sys
import traceback

from hf2q.cli.settings import Settings

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


def configure(settings: Settings) -> None:
    """Install the handler. ``--log-level`` wins over ``-v``; without either, warnings and errors are shown."""
    by_count = {0: logging.WARNING, 1: logging.INFO}.get(settings.verbose, logging.DEBUG)
    level = LEVELS[settings.log_level] if settings.log_level else by_count
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else logging.Formatter(_TEXT))
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
        return json.dumps(told, ensure_ascii=False, default=str)
