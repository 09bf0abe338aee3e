"""The dashboard: what it makes of events, how it looks, which terminals it takes, and that nobody waits for it."""

import io
import logging
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hf2q.errors import UsageError
from hf2q.serve.channel import Channel
from hf2q.serve.observe import RequestEvent
from hf2q.serve.operator import open_operator
from hf2q.serve.operator.board import FORGOTTEN, LINGER, Board
from hf2q.serve.operator.lines import Diverted, Lines
from hf2q.serve.operator.render import duration, rendered
from hf2q.serve.operator.screen import Screen
from hf2q.serve.operator.terminal import chosen

pytest.importorskip("rich")


def event(kind, id="r1", slot=0, **more):
    return RequestEvent(
        **{"kind": kind, "request_id": id, "slot": slot, "time": 100.0, "prompt_tokens": 1000, "cached_tokens": 200}
        | more
    )


def drawn(board, now=100.0, *, width=100, several=False, height=30, lost=0):
    from rich.console import Console

    console = Console(record=True, width=width, file=io.StringIO())
    console.print(
        rendered(board, now, title="hf2q", uptime=3725, lost=lost, width=width, height=height, several=several),
        soft_wrap=False,
    )
    return console.export_text()


def line_of(text, word):
    return next(line for line in text.splitlines() if word in line)


# ---------------------------------------------------------------------------------------------------------------- board


def test_a_request_from_its_arrival_to_its_end():
    board = Board()
    board.take("m", event("queued", slot=None))
    assert (board.waiting, board.active) == (1, 0)
    board.take("m", event("started"))
    assert (board.waiting, board.active) == (0, 1)
    board.take("m", event("prefill", done_tokens=600))
    (row,) = board.rows.values()
    assert row.phase == "prefill"
    board.take("m", event("first_token", done_tokens=1000, generated=1))
    board.take("m", event("decoding", done_tokens=1000, generated=9, rate=40.0))
    assert row.phase == "decode"
    assert board.decode_rate == 40.0
    board.take("m", event("finished", done_tokens=1000, generated=12, finish_reason="stop"))
    assert (board.active, board.finished, board.generated, board.cached_tokens) == (0, 1, 12, 200)
    assert row.phase == "stop"
    board.prune(100.0 + LINGER - 1, lost=False)
    assert board.rows
    board.prune(100.0 + LINGER + 1, lost=False)
    assert not board.rows


def test_several_choices_under_one_id():
    board = Board()
    for _ in range(3):
        board.take("m", event("queued", slot=None))
    assert board.waiting == 3
    board.take("m", event("started", slot=0))
    board.take("m", event("started", slot=1))
    assert (board.waiting, board.active) == (1, 2)
    board.take("m", event("cancelled", slot=None, finish_reason="cancelled"))
    assert (board.waiting, board.cancelled) == (0, 1)


def test_requests_of_two_models_in_the_same_slot_do_not_mix():
    board = Board()
    board.take("a", event("started"))
    board.take("b", event("started"))
    board.take("a", event("failed", error="no"))
    assert (board.active, board.failed) == (1, 1)


def test_a_slot_that_is_used_again_under_the_same_id():
    board = Board()
    board.take("m", event("started"))
    board.take("m", event("finished", finish_reason="length"))
    board.take("m", event("queued", slot=None))
    board.take("m", event("started"))
    assert (board.active, board.waiting) == (1, 0)


def test_what_is_not_heard_of_goes_only_when_events_were_lost():
    board = Board()
    board.take("m", event("started"))
    board.prune(100.0 + FORGOTTEN + 1, lost=False)
    assert board.rows
    board.prune(100.0 + FORGOTTEN + 1, lost=True)
    assert not board.rows


# ------------------------------------------------------------------------------------------------------------- the view


def test_a_row_says_everything():
    board = Board()
    board.take("m", event("started", id="chat-1", slot=2))
    board.take("m", event("prefill", id="chat-1", slot=2, done_tokens=500, rate=912.4, eta_seconds=70.0))
    line = line_of(drawn(board, now=105.0), "chat-1")
    assert re.split(r"\s{2,}", line.strip()) == [
        "chat-1", "2", "prefill", "200 + 800", "━━━━╌╌╌╌", "50 %", "912", "1m05",
    ]  # fmt: skip
    board.take("m", event("decoding", id="chat-1", slot=2, done_tokens=1000, generated=1234, rate=41.25))
    assert re.split(r"\s{2,}", line_of(drawn(board), "chat-1").strip()) == [
        "chat-1", "2", "decode", "200 + 800", "41.2", "1,234",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [78, 80, 100, 200])
def test_it_fits(width):
    board = Board()
    for number in range(40):
        id = f"4f1c8a52-0a3a-4f6e-9a55-{number:012d}"
        board.take("a-model-with-a-rather-long-name", event("queued", id=id, slot=None))
        if number < 6:
            board.take("a-model-with-a-rather-long-name", event("started", id=id, slot=number))
            more = {"done_tokens": 100_000, "rate": 9000.0, "eta_seconds": 7000.0, "prompt_tokens": 200_000}
            board.take("a-model-with-a-rather-long-name", event("prefill", id=id, slot=number, **more))
    text = drawn(board, width=width, several=True, height=20)
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) <= 20
    assert text.count("prefill") == 6
    assert text.count(" 200 + 199.8k ") == 6
    assert text.count("1h56") == 6
    assert "and 25 more" in text
    assert "6 active · 34 waiting" in text or width < 80


def test_nothing_from_outside_is_markup_or_controls_the_terminal():
    board = Board()
    board.take("[red]m", event("started", id="[bold]x\x1b[2J"))
    text = drawn(board, several=True)
    assert "[bold]x?[2J" in text
    assert "[red]m" in text
    assert "\x1b" not in text


def test_lost_events_are_told():
    assert "3 events lost" in drawn(Board(), lost=3)


def test_durations():
    assert [duration(s) for s in (0.2, 59, 61, 3725)] == ["0 s", "59 s", "1 min 01 s", "1 h 02 min"]


# ------------------------------------------------------------------------------------------------------------ terminals


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def fileno(self):
        return 99


@pytest.fixture
def terminal(monkeypatch):
    """A function that makes a terminal of a size."""

    def made(columns=100, lines=30, term="xterm"):
        monkeypatch.setenv("TERM", term)
        monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((columns, lines)))
        return Terminal()

    return made


def test_auto_is_the_dashboard_where_it_can_be(terminal):
    assert chosen("auto", terminal(), json_logs=False) == "dashboard"
    assert chosen("auto", terminal(), json_logs=True) == "plain"
    assert chosen("auto", terminal(term="dumb"), json_logs=False) == "plain"
    assert chosen("auto", terminal(columns=60), json_logs=False) == "plain"
    assert chosen("auto", io.StringIO(), json_logs=False) == "plain"
    assert chosen("plain", terminal(), json_logs=False) == "plain"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"term": "dumb"}, "TERM='dumb'"),
        ({"columns": 77}, "77 columns and 30 lines"),
        ({"lines": 9}, "100 columns and 9 lines"),
        ({}, "JSON"),
    ],
)
def test_the_dashboard_is_refused_early_where_it_cannot_be(terminal, how, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        open_operator("dashboard", terminal(**how), json_logs=not how, note=print)
    with pytest.raises(UsageError, match="stderr is no terminal"):
        open_operator("dashboard", io.StringIO(), json_logs=False, note=print)


def test_plain_passes_notes_on():
    told = []
    with open_operator("plain", io.StringIO(), json_logs=False, note=told.append) as view:
        view.note("ready")
        view.watch(told.append)
    assert told == ["ready"]


# --------------------------------------------------------------------------------------------------------- nobody waits


def test_a_channel_that_nobody_reads_drops_and_counts():
    channel = Channel(capacity=2)
    tap = channel.observer("m")
    for number in range(5):
        tap.on(event("decoding", generated=number))
    assert channel.dropped == 3
    assert [each.generated for _, each in channel.drain()] == [0, 1]
    channel.close()
    assert channel.get() is None


def test_log_lines_go_to_the_screen_and_never_wait():
    stream, lines = io.StringIO(), Lines(capacity=2)
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with Diverted(stream, lines):
            for number in range(3):
                root.warning("line %d", number)
        root.warning("after")
    finally:
        root.removeHandler(handler)
    assert lines.drain() == ["line 0", "line 1"]
    assert lines.dropped == 1
    assert stream.getvalue() == "after\n"


def test_a_terminal_that_takes_nothing_does_not_hold_up_the_engine():
    class Stuck(io.StringIO):
        def write(self, text):
            time.sleep(60)

    stuck = Stuck()
    with Screen(stuck) as screen:
        tap = screen.observer("m")
        began = time.monotonic()
        for _ in range(10_000):
            tap.on(event("decoding"))
            screen.note("a line")
        assert time.monotonic() - began < 1.0
        screen._thread.join = lambda timeout: None  # it is stuck for good; leave it behind


PROGRAM = """
import logging, sys, time
from hf2q.serve.observe import RequestEvent
from hf2q.serve.operator import open_operator
logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
taps = []
with open_operator("dashboard", sys.stderr, json_logs=False, note=print) as view:
    view.title = "hf2q · tiny"
    view.watch(lambda maker: taps.append(maker("tiny")))
    tap = taps[0]
    view.note("serving tiny")
    now = time.time()
    tap.on(RequestEvent(kind="started", request_id="req-7", slot=0, time=now, prompt_tokens=4000, cached_tokens=1000))
    tap.on(RequestEvent(kind="prefill", request_id="req-7", slot=0, time=now, prompt_tokens=4000, cached_tokens=1000,
                        done_tokens=3000, rate=500.0, eta_seconds=2.0))
    time.sleep(0.6)
    logging.info("request req-6: done")
    time.sleep(0.6)
print("the end", file=sys.stderr)
"""


def test_on_a_real_terminal(tmp_path):
    """In a pseudo-terminal: the table is drawn, a log line appears, and the table is gone at the end."""
    ours, theirs = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    env = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen([sys.executable, script], stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    assert process.wait(timeout=20) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert "req-7" in text
    assert "75 %" in text
    assert "1,000 + 3,000" in text
    # the last of the drawings is erased, lines above it stay
    assert Shown(100, 24).after(seen.decode()) == ["serving tiny", "request req-6: done", "the end"]


class Shown:
    """As much of a terminal as rich uses: what is left on the screen after a text with escape sequences."""

    def __init__(self, columns, lines):
        self.columns, self.rows, self.row = columns, [""], 0

    def after(self, text):
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", text):
            column_part = re.fullmatch(r"\x1b\[([0-9;?]*)([A-Za-z])", part)
            if part == "\n":
                self.row += 1
                if self.row == len(self.rows):
                    self.rows.append("")
            elif part == "\r":
                self.fresh = True
            elif column_part and column_part[2] == "A":
                self.row -= int(column_part[1] or 1)
            elif column_part and column_part[2] == "K":
                self.rows[self.row] = ""
            elif not column_part:
                self.rows[self.row] = part if getattr(self, "fresh", True) else self.rows[self.row] + part
                self.fresh = False
        return [row.rstrip() for row in self.rows if row.strip()]


def test_nothing_heavy_is_imported_for_it():
    code = "import sys, hf2q.serve.operator; print({'rich', 'litestar', 'mlx', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert done.stdout == "set()\n"
