"""Log lines: what they may hold, and logs that cannot be written."""

import io
import json
import logging
import os
import threading

import pytest

from hf2q.cli.logs import (
    Background,
    JsonFormatter,
    Own,
    StderrHandler,
    TextFormatter,
    configure,
    in_background,
    notice,
    say,
)
from hf2q.cli.output import printable
from hf2q.cli.settings import Settings

EVIL = "a\x1b[2J\x9b\u2028\u202e\udc80\nE hf2q: all is lost"


def record(message, *args, **extra):
    found = logging.LogRecord("hf2q.x", logging.INFO, __file__, 1, message, args, None)
    found.__dict__.update(extra)
    return found


def test_text_has_no_control_characters_and_no_second_line_at_the_margin():
    lines = TextFormatter("%(levelname).1s %(name)s: %(message)s").format(record("said %s", EVIL)).split("\n")
    assert all(line == printable(line) for line in lines)
    assert [line.startswith("    ") for line in lines] == [False, True]


def test_json_is_one_line_that_reads_back():
    line = JsonFormatter().format(record("said %s", EVIL, event="request", fields={"id": EVIL, "status": 200}))
    assert line.isprintable()
    found = json.loads(line)
    assert (found["message"], found["id"], found["status"]) == (f"said {EVIL}", EVIL, 200)


def test_a_stream_that_breaks_is_no_error(tmp_path):
    class Broken(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    say("x", Broken())
    closed = (tmp_path / "log").open("w")
    closed.close()
    say("x", closed)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        say("x", gone)  # no reader: EPIPE
    say("x", None)


def test_lines_are_whole_and_at_once(tmp_path):
    with (tmp_path / "log").open("w") as stream:
        handler = StderrHandler(stream)
        handler.setFormatter(JsonFormatter())
        for number in range(3):
            handler.emit(record("%d é\udc80", number))
        lines = (tmp_path / "log").read_text().splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["0 é\udc80", "1 é\udc80", "2 é\udc80"]


@pytest.mark.parametrize("json_log", [True, False])
def test_notices_have_the_form_of_the_log(json_log, capsys):
    root = logging.getLogger()
    was, level = root.handlers[:], root.level
    try:
        configure(Settings(log_format="json" if json_log else "text", log_level="error"))
        with in_background():
            notice("ready")
    finally:
        root.handlers[:] = was
        root.setLevel(level)
    line = capsys.readouterr().err
    assert (json.loads(line)["message"] if json_log else line) == ("ready" if json_log else "ready\n")


class Stands(logging.Handler):
    """A log that stands still until it is let go."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()
        self.seen = []

    def emit(self, record):
        assert self.go.wait(10)
        self.seen.append(record.getMessage())


def test_a_log_that_stands_still_holds_up_nobody(monkeypatch, capsys):
    monkeypatch.setattr("hf2q.cli.logs.QUEUED", 5)
    slow = Stands()
    background = Background(slow)
    for number in range(20):
        background.emit(record("%d", number))
    assert 13 <= background.dropped <= 15
    slow.go.set()
    background.finish(5)
    assert slow.seen[:5] == list("01234")
    assert "lines were dropped" in capsys.readouterr().err


@pytest.mark.parametrize("own", [True, False])
def test_in_background_leaves_things_as_they_were(own):
    root, handler = logging.getLogger(), Stands()
    handler.go.set()
    was = root.handlers[:]
    before = [each for each in was if not any(isinstance(f, Own) for f in each.filters)]
    root.handlers[:] = before
    if own:
        handler.addFilter(Own())
        root.addHandler(handler)
    try:
        with in_background():
            logging.getLogger("hf2q.x").warning("%s", "one")
        assert handler.seen == (["one"] if own else [])
        assert root.handlers == ([*before, handler] if own else before)
    finally:
        root.handlers[:] = was
