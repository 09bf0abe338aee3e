"""`Screen`: the dashboard on a terminal. One thread of its own draws it a few times a second, log lines above it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from hf2q.serve.channel import Channel
from hf2q.serve.operator.board import Board
from hf2q.serve.operator.lines import Diverted, Lines
from hf2q.serve.operator.render import rendered

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hf2q.serve.observe import Observer

EVERY = 0.25
"""Seconds between two drawings."""


class Screen:
    """The live view on `stream`; use it in a `with` statement.

    title    what is served and where, for the first line; may be set later
    console  to draw on, for tests
    """

    def __init__(self, stream: TextIO, *, title: str = "hf2q", console: Console | None = None) -> None:
        from rich.console import Console

        self.title = title
        self._console = console or Console(file=stream, force_terminal=True)
        self._lines = Lines()
        self._diverted = Diverted(stream, self._lines)
        self._channel: Channel[str] = Channel()
        self._models: set[str] = set()
        self._board = Board()
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="hf2q-dashboard", daemon=True)

    def observer(self, model: str) -> Observer:
        """What watches the engine of `model`."""
        self._models.add(model)
        return self._channel.observer(model)

    def watch(self, add: Callable[[Callable[[str], Observer]], None]) -> None:
        """Have it told of what happens: `add` takes what makes an observer for a model, by its id."""
        add(self.observer)

    def note(self, text: str) -> None:
        """Show a line."""
        self._lines.write(text + "\n")

    def __enter__(self) -> Screen:
        self._diverted.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        # a terminal that takes nothing must not keep the program from ending
        self._thread.join(timeout=2.0)
        self._diverted.__exit__()

    def _draw(self) -> None:
        from rich.live import Live

        with Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        ) as live:
            while not self._stop.wait(EVERY):
                self._print_lines()
                live.update(self.view(), refresh=True)
            self._print_lines()

    def _print_lines(self) -> None:
        from rich.text import Text

        for line in self._lines.drain():
            self._console.print(Text(line), soft_wrap=True)

    def view(self) -> RenderableType:
        """What is to be seen now."""
        now = time.time()
        for model, event in self._channel.drain():
            self._board.take(model, event)
        lost = self._channel.dropped
        self._board.prune(now, lost=lost > 0)
        return rendered(
            self._board,
            now,
            title=self.title,
            uptime=time.monotonic() - self._began,
            lost=lost + self._lines.dropped,
            width=self._console.size.width,
            height=self._console.size.height,
            several=len(self._models) > 1,
        )
