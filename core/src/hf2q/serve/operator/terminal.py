"""Which view a terminal gets: the live table needs one that can move its cursor and has room for it."""

from __future__ import annotations

import os
from typing import Literal, TextIO, TypeAlias, get_args

from hf2q.errors import UsageError

Kind: TypeAlias = Literal["auto", "dashboard", "plain"]
KINDS: tuple[str, ...] = get_args(Kind)

LEAST_COLUMNS, LEAST_LINES = 78, 10


def chosen(kind: Kind, stream: TextIO, *, json_logs: bool) -> Literal["dashboard", "plain"]:
    """What `kind` means for `stream`: *auto* is the dashboard wherever it can be.

    Errors: UsageError for *dashboard* where it cannot be, saying why.
    """
    if kind == "plain":
        return "plain"
    why = unsuitable(stream, json_logs=json_logs)
    if why is None:
        return "dashboard"
    if kind == "dashboard":
        raise UsageError(f"--operator-ui dashboard: {why}", hint="--operator-ui plain writes log lines")
    return "plain"


def unsuitable(stream: TextIO, *, json_logs: bool) -> str | None:
    """Why `stream` cannot show the dashboard; None if it can."""
    if json_logs:
        return "the log is asked for as JSON, which a program reads"
    if not stream.isatty():
        return "stderr is no terminal"
    if os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        return f"the terminal (TERM={os.environ.get('TERM', '')!r}) cannot move its cursor"
    columns, lines = os.get_terminal_size(stream.fileno())
    if columns < LEAST_COLUMNS or lines < LEAST_LINES:
        return (
            f"the terminal has {columns} columns and {lines} lines, expected at least {LEAST_COLUMNS} and {LEAST_LINES}"
        )
    return None
