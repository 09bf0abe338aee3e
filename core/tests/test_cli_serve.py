"""``hf2q serve``: what it refuses before it serves. Serving itself is tested in api/."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from hf2q.cli import main
from hf2q.cli.serve_access import allowed_hosts, read_keys
from hf2q.cli.serve_models import per_model
from hf2q.errors import UsageError
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
        (("--models-dir", "nowhere"), 3, "there is no folder nowhere"),
        (("--model", __file__, "--model", __file__), 3, "--model is given twice"),
        (("--model", __file__, "--mmproj", "nowhere.gguf"), 3, "there is no file nowhere.gguf"),
        (("--model", __file__, "--mmproj", f"other={__file__}"), 3, "there is no file other="),
        (("--model", __file__, "--mmproj", __file__, "--mmproj", __file__), 3, "is given two files"),
        (("--model", __file__, "--alias", "x"), 3, "is not of the form NAME=MODEL"),
        (("--model", __file__, "--alias", "x=y"), 3, "no model 'y'; there are: test_cli_serve.py"),
        (("--model", __file__, "--alias", "x=a", "--alias", "x=b"), 3, "two meanings"),
        (("--model", __file__, "--alias", "test_cli_serve.py=test_cli_serve.py"), 3, "is the name of a model"),
        (("--model", __file__, "--max-models", "0"), 3, "--max-models"),
        (("--model", __file__, "--memory-budget", "lots"), 3, "--memory-budget"),
        (("--model", __file__, "--slots", "0"), 3, "--slots"),
        (("--model", __file__, "--slots", "65"), 3, "--slots"),
        (("--model", __file__, "--ctx", "1"), 3, "--ctx"),
        (("--model", __file__, "--threads", "0"), 3, "--threads"),
        (("--model", __file__, "--prefill-chunk", "0"), 3, "--prefill-chunk"),
        (("--model", __file__, "--kv-budget", "0"), 3, "--kv-budget"),
        (("--model", __file__, "--prefix-cache", "none"), 3, "--prefix-cache"),
        (("--model", __file__, "--stuck-after", "0"), 3, "--stuck-after"),
        (("--model", __file__, "--public-health"), 3, "--public-health is for servers with API keys"),
        (("--model", __file__, "--api-key", ""), 3, "API key 1 of 1 is empty"),
        (("--model", __file__, "--api-key", "two words"), 3, "holds blanks"),
        (("--model", __file__, "--api-key-file", "nowhere.txt"), 3, "there is no file nowhere.txt"),
        (("--model", __file__, "--port", "0", "--api-key", "k", "--allow-unauthenticated"), 3, "contradicts"),
        (("--model", __file__, "--port", "0", "--host", "0.0.0.0"), 3, "no API key is given"),
        (("--model", __file__, "--port", "0", "--allowed-host", "http://x"), 3, "--allowed-host 'http://x'"),
        (("--model", __file__, "--cors-origin", "x.example"), 3, "--cors-origin 'x.example'"),
        (("--model", __file__, "--cors-origin", "https://x.example/a"), 3, "is no origin"),
        (("--model", __file__, "--supervise", "--port", "0"), 3, "--supervise is for the program hf2q"),
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


def test_the_key_of_the_environment_counts(broken, monkeypatch, capsys):
    monkeypatch.setenv("HF2Q_API_KEY", "secret")
    words = ["serve", "--model", str(broken), "--host", "0.0.0.0", "--port", "0"]
    assert main(words) == 3
    err = capsys.readouterr().err
    assert "broken.gguf" in err  # it got as far as loading
    assert "secret" not in err
    assert main([*words, "--allow-unauthenticated"]) == 3
    assert "contradicts" in capsys.readouterr().err


def test_keys_of_a_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# ours\n one \n\ntwo\none\n")
    assert read_keys(["zero"], path) == ("zero", "one", "two")
    path.write_text("# none\n")
    with pytest.raises(UsageError, match="holds no key"):
        read_keys([], path)


@pytest.mark.parametrize(
    ("names", "local", "keys", "allowed", "refused"),
    [
        ([], True, False, ["localhost", "127.0.0.1", "::1"], ["<ip>", "evil.example"]),
        (["Box.lan"], True, True, ["localhost", "box.lan"], ["evil.example"]),
        ([], False, False, ["<ip>", "localhost", "0.0.0.0"], ["evil.example"]),
        (["box.lan"], False, True, ["<ip>", "box.lan"], ["evil.example"]),
    ],
)
def test_names_of_the_server(names, local, keys, allowed, refused):
    found = allowed_hosts(names, host="0.0.0.0", local=local, keys=keys)
    assert set(allowed) <= found
    assert not found & set(refused)


def test_any_name():
    assert allowed_hosts(["*"], host="127.0.0.1", local=True, keys=False) is None
    assert allowed_hosts([], host="0.0.0.0", local=False, keys=True) is None


def test_files_of_models():
    ids = ["a", "b"]
    here = Path(__file__)
    assert per_model("--mmproj", [f"a={here}"], ids, None) == {"a": here}
    assert per_model("--mmproj", [f"b={here}", f"a={here}"], ids, "a") == {"b": here, "a": here}
    assert per_model("--mmproj", [str(here)], ids, "b") == {"b": here}
    with pytest.raises(UsageError, match="does not say which model it is for; there are: a, b"):
        per_model("--mmproj", [str(here)], ids, None)
