"""The board as something rich can draw. Text from outside is only ever a `Text`, so that it is no markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf2q.serve.operator.board import Board, Row

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_STYLES = {
    "waiting": "yellow",
    "parked": "yellow",
    "prefill": "cyan",
    "decode": "green",
    "failed": "red",
}
_BAR = 8
_WIDE = 96


def rendered(
    board: Board, now: float, *, title: str, uptime: float, lost: int, width: int, height: int, several: bool
) -> RenderableType:
    """The whole view, in at most `height` lines of `width` characters.

    `several`: requests say which model they are for, where there is room.
    """
    from rich.console import Group

    rows = list(board.rows.values())
    # who works comes before who waits and who has ended, when not all have room
    rows.sort(key=lambda row: (row.ended, row.event.slot is None))
    room = max(height - 4, 1)
    shown = rows if len(rows) <= room else rows[: room - 1]
    parts: list[RenderableType] = [_head(board, title, uptime, lost), _table(shown, now, several and width >= _WIDE)]
    if len(shown) < len(rows):
        parts.append(_dim(f"  … and {len(rows) - len(shown)} more"))
    return Group(*parts)


def _head(board: Board, title: str, uptime: float, lost: int) -> Text:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(title, "bold")
    facts = [f"up {duration(uptime)}", f"{board.active} active", f"{board.waiting} waiting"]
    if board.decode_rate:
        facts.append(f"{number(board.decode_rate)} tokens/s")
    done = [f"{board.finished} finished"]
    done += [f"{count} {name}" for count, name in ((board.cancelled, "cancelled"), (board.failed, "failed")) if count]
    facts.append(", ".join(done))
    if lost:
        facts.append(f"{lost} events lost")
    text.append(" · " + " · ".join(facts), "dim")
    return text


def _table(rows: list[Row], now: float, several: bool) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, expand=True, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim"
    )
    table.add_column("request", no_wrap=True, overflow="ellipsis", ratio=1, min_width=8)
    if several:
        table.add_column("model", no_wrap=True, overflow="ellipsis", ratio=1, min_width=6)
    table.add_column("slot", no_wrap=True, justify="right", min_width=4)
    table.add_column("phase", no_wrap=True, min_width=7)
    table.add_column("cached + new", no_wrap=True, justify="right", min_width=14)
    table.add_column("prompt", no_wrap=True, min_width=_BAR + 6)
    table.add_column("tokens/s", no_wrap=True, justify="right", min_width=8)
    table.add_column("left", no_wrap=True, justify="right", min_width=5)
    table.add_column("out", no_wrap=True, justify="right", min_width=5)
    for row in rows:
        table.add_row(*_cells(row, now, several), style="dim" if row.ended else "")
    return table


def _cells(row: Row, now: float, several: bool) -> list[Text]:
    from rich.text import Text

    event = row.event
    cells = [event.request_id[:40] + (f" ×{row.many}" if row.many > 1 else "")]
    if several:
        cells.append(row.model)
    cells.append("" if event.slot is None else str(event.slot))
    started = event.slot is not None
    cells += [row.phase, _split(row)]
    cells.append(_progress(row) if started else "")
    cells.append(number(event.rate) if started and event.rate else "")
    cells.append(_left(row, now))
    cells.append(count(event.generated) if event.generated else "")
    texts = [Text(_safe(cell)) for cell in cells]
    phase = texts[3 if several else 2]
    phase.stylize("" if row.ended and row.phase != "failed" else _STYLES.get(row.phase, ""))
    return texts


def _split(row: Row) -> str:
    event = row.event
    if event.slot is None:
        return count(event.prompt_tokens)
    return f"{count(event.cached_tokens)} + {count(event.new_tokens)}"


def _progress(row: Row) -> str:
    """Of the prompt: a bar and a percentage while it is computed."""
    event = row.event
    if row.phase != "prefill" or not event.prompt_tokens:
        return ""
    share = min(event.done_tokens / event.prompt_tokens, 1.0)
    full = int(share * _BAR)
    return f"{'━' * full}{'╌' * (_BAR - full)} {int(share * 100):3d} %"


def _left(row: Row, now: float) -> str:
    eta = row.event.eta_seconds
    if row.phase != "prefill" or eta is None:
        return ""
    left = round(max(eta - (now - row.event.time), 0.0))
    if left < 60:
        return f"{left}s"
    return f"{left // 60}m{left % 60:02d}" if left < 3600 else f"{left // 3600}h{left % 3600 // 60:02d}"


def duration(seconds: float) -> str:
    """For people, in a few characters."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(value: int) -> str:
    """Of tokens, in a few characters."""
    if value < 10_000:
        return f"{value:,}"
    return f"{value / 1000:.1f}k" if value < 1_000_000 else f"{value / 1_000_000:.2f}M"


def number(value: float) -> str:
    """A rate in about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _safe(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _dim(text: str) -> Text:
    from rich.text import Text

    return Text(text, "dim")
