"""The one call for the command line: which view it is, opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

from hf2q.serve.operator.terminal import Kind, chosen

if TYPE_CHECKING:
    from types import TracebackType

    from hf2q.serve.observe import Observer


class Operator(Protocol):
    """A view of the server, in a `with` statement while the server runs."""

    title: str

    def watch(self, add: Callable[[Callable[[str], Observer]], None]) -> None:
        """Have it told of what happens: `add` takes what makes an observer for a model, by its id."""
        ...

    def note(self, text: str) -> None:
        """Tell the person something."""
        ...

    def __enter__(self) -> Operator: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Plain:
    """Log lines as they are; notes go where `note` puts them."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.title = ""
        self._note = note

    def watch(self, add: Callable[[Callable[[str], Observer]], None]) -> None:
        """It needs nothing: the log has a line for each request."""

    def note(self, text: str) -> None:
        """Tell the person something."""
        self._note(text)

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def open_operator(kind: Kind, stream: TextIO, *, json_logs: bool, note: Callable[[str], None]) -> Operator:
    """The view that `kind` asks for, on the terminal `stream`. Call it before a model is loaded.

    json_logs  the log is one JSON object a line: then it is never the dashboard
    note       shows a line in the plain view

    Errors: UsageError when the dashboard is asked for and cannot be.
    """
    if chosen(kind, stream, json_logs=json_logs) == "plain":
        return Plain(note)
    from hf2q.serve.operator.screen import Screen

    return Screen(stream)
