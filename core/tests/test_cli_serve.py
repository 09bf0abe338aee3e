"""``hf2q serve``: what it refuses before it serves. Serving itself is tested in api/."""

import logging
import subprocess
import sys

import pytest

from hf2q.cli import main
from hf2q.serve.api.server import listen


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00garbage")
    return path


def test_broken_file(broken, capsys):
    assert main(["serve", "--model", str(broken), "--port", "0"]) == 3
    err = capsys.readouterr().err
    assert "broken.gguf" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--model", "nowhere.gguf"), 3, "there is no file nowhere.gguf"),
        (("--model", "."), 3, "is a folder"),
        ((), 3, "--model"),
        (("--model", "nowhere.gguf", "--port", "70000"), 3, "--port"),
        (("--model", "nowhere.gguf", "--port", "http"), 3, "--port"),
        (("--model", __file__, "--drain", "-1"), 3, "--drain"),
        (("--model", __file__, "--drain", "nan"), 3, "--drain"),
        (("--model", __file__, "--drain", "inf"), 3, "--drain"),
        (("--model", "nowhere.gguf", "--queue-capacity", "0"), 3, "--queue-capacity"),
        (("--model", __file__, "--chat-template-file", "nowhere.jinja"), 3, "there is no file nowhere.jinja"),
    ],
)
def test_what_it_refuses(capsys, words, code, message):
    assert main(["serve", *words]) == code
    out, err = capsys.readouterr()
    assert message in err
    assert (out, "Traceback" in err) == ("", False)


def test_port_in_use_is_said_before_anything_is_loaded(broken, capsys):
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert main(["serve", "--model", str(broken), "--port", str(port)]) == 1
    err = capsys.readouterr().err
    assert f"error: port {port} of 127.0.0.1 is in use" in err
    assert "hint:" in err


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ([], logging.INFO),
        (["--log-level", "warn"], logging.WARNING),
        (["--log-level", "error"], logging.ERROR),
        (["-vv"], logging.DEBUG),
    ],
)
def test_requests_are_told_unless_something_else_was_asked_for(broken, monkeypatch, words, level):
    logger = logging.getLogger("hf2q.serve")
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    monkeypatch.setattr(logger, "_cache", {})
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    try:
        main(["serve", "--model", str(broken), "--port", "0", *words])
        assert logger.getEffectiveLevel() == level
    finally:
        root.setLevel(before[0])
        root.handlers[:] = before[1]


@pytest.mark.parametrize("missing", ["litestar", "uvicorn"])
def test_says_what_to_install(missing):
    # in a process of its own: a module cannot be taken out of this one without leaving traces
    words = ["serve", "--model", "m.gguf"]
    program = f"import sys; sys.modules[{missing!r}] = None; from hf2q.cli import main; sys.exit(main({words!r}))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert f"the package {missing!r}" in found.stderr
    assert "hint: pip install 'hf2q[serve]'" in found.stderr
