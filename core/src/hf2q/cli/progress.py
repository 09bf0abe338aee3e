"""The bar that commands draw on stderr while tensor data flows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf2q.types import Plan, TensorPlan


@contextmanager
def bar(*, shown: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A callback for (what is at work, how much is done, how much there is) that draws a bar on stderr.

    None where nobody would see it: when it is not wanted, and when stderr is no terminal.
    """
    if not (shown and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("", total=None)
        yield lambda what, done, total: drawn.update(task, total=total, completed=done, description=what)


@contextmanager
def progress_bar(
    *, shown: bool
) -> Iterator[tuple[Callable[[Plan, TensorPlan, int], None] | None, Callable[[str, int, int], None] | None]]:
    """Callbacks that draw a bar on stderr, of the conversion and of a download before it; None for nobody to see."""
    if not shown:
        yield None, None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def update(plan: Plan, tensor: TensorPlan, written: int) -> None:
            bar.update(task, total=plan.nbytes, completed=written, description=tensor.name)

        def arrive(path: str, done: int, total: int) -> None:
            bar.update(task, total=total, completed=done, description=f"downloading {path}")

        yield update, arrive
