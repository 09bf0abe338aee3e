"""``hf2q serve``: what it refuses before it serves. Serving itself is tested in api/."""

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
        (("--model", "nowhere.gguf", "--drain", "-1"), 3, "--drain"),
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
