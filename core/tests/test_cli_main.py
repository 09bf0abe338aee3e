"""The program around its commands: options of every command, exit codes, what stderr says, plugin commands."""

import errno
import json
import logging
import os
import subprocess
import sys

import pytest

from hf2q import __version__
from hf2q.cli import exits, main
from hf2q.cli.app import COMMANDS, build, run
from hf2q.cli.exits import guarded, wants_json, wants_traceback
from hf2q.cli.logs import configure
from hf2q.cli.settings import Settings, plugin_environment, split
from hf2q.errors import ConfigError, EncodeError, Hf2qError, UsageError, WriteError
from hf2q.testing.distributions import write_distribution


@pytest.fixture(autouse=True)
def untouched_logging():
    """`configure` acts on the root logger; what it did is undone."""
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


# ------------------------------------------------------------------------------------------------- help and version


def test_version(capsys):
    for words in (["--version"], ["-v", "--version"], ["--log-level", "info", "--version"]):
        assert main(words) == 0
        assert capsys.readouterr().out == f"hf2q {__version__}\n"


def test_help_names_every_command_and_common_option(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, _, line in COMMANDS:
        assert name in out
        assert line in out
    for option in ("--log-level", "--log-format", "--plugins", "--strict-plugins", "--version", "-v"):
        assert option in out


def test_without_a_command_the_help_is_shown(capsys):
    assert main([]) == 0
    assert "Usage: hf2q COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
def test_every_command_has_a_help_page(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"Usage: hf2q {name}" in capsys.readouterr().out


def test_flags_have_no_twin():
    """`--no-x` exists only where a command names it so."""
    with pytest.raises(UsageError, match="--no-json"):
        run(["plugins", "--no-json"])


def test_commands_are_import_strings():
    app = build()
    assert set(app._commands) >= {name for name, _, _ in COMMANDS}
    assert not any(getattr(app._commands[name], "is_resolved", True) for name, _, _ in COMMANDS)


# ------------------------------------------------------------------------------------------- options of every command


def test_common_options_are_taken_from_anywhere():
    settings, rest = split(["-v", "convert", "--plugins", "a,b", "x", "-vv", "--log-format=json", "--strict-plugins"])
    assert settings == Settings(verbose=3, log_format="json", plugins="a,b", strict_plugins=True)
    assert rest == ["convert", "x"]


def test_what_follows_two_dashes_is_left_alone():
    assert split(["generate", "--", "-v", "--plugins"]) == (Settings(), ["generate", "--", "-v", "--plugins"])


def test_a_value_that_looks_like_a_common_option_can_be_written_with_an_equals_sign():
    assert split(["generate", "--prompt=-v"]) == (Settings(), ["generate", "--prompt=-v"])


def test_version_after_a_command_is_the_command_s_own():
    assert split(["serve", "--version"]) == (Settings(), ["serve", "--version"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--log-level"], "--log-level needs a value"),
        (["--log-level", "loud"], "--log-level is 'loud', expected one of debug, info, warn, error"),
        (["--log-format=xml"], "--log-format is 'xml', expected one of text, json"),
        (["--plugins="], "--plugins names no plugin"),
        (["--plugins", " , "], "--plugins names no plugin"),
    ],
)
def test_a_bad_common_option_is_a_usage_error(words, told, capsys):
    assert main(words) == 3
    assert f"error: {told}" in capsys.readouterr().err


def test_plugin_options_hold_for_the_command_alone(monkeypatch):
    monkeypatch.setenv("HF2Q_PLUGINS", "before")
    monkeypatch.delenv("HF2Q_STRICT_PLUGINS", raising=False)
    with plugin_environment(Settings(plugins="a,b", strict_plugins=True)):
        assert os.environ["HF2Q_PLUGINS"] == "a,b"
        assert os.environ["HF2Q_STRICT_PLUGINS"] == "1"
    assert os.environ["HF2Q_PLUGINS"] == "before"
    assert "HF2Q_STRICT_PLUGINS" not in os.environ


# ------------------------------------------------------------------------------------------------------- how runs end


def ended(error, *words):
    def work():
        raise error

    return guarded(work, words)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("config.json: x is 1"), 3),
        (UsageError("no"), 3),
        (EncodeError("NaN"), 1),
        (WriteError("full"), 1),
        (Hf2qError("no"), 1),
    ],
)
def test_a_refusal_is_one_message_with_the_code_of_its_class(error, code, capsys):
    error.hint = "do this"
    assert ended(error) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: {error.message}\nhint: do this\n"


def test_a_refusal_without_a_hint_has_none(capsys):
    ended(ConfigError("bad"))
    assert capsys.readouterr().err == "error: bad\n"


def test_with_json_a_refusal_is_an_object_on_stderr(capsys):
    assert ended(ConfigError("bad ü", hint="fix"), "convert", "--json") == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    told = {"type": "ConfigError", "message": "bad ü", "hint": "fix", "exit_code": 3}
    assert json.loads(captured.err) == {"error": told}


def test_json_behind_two_dashes_is_text():
    assert wants_json(["convert", "--json"])
    assert not wants_json(["generate", "--", "--json"])


@pytest.mark.parametrize(("words", "shown"), [(["-vvv"], True), (["-v", "-vv"], True), (["-vv"], False), ([], False)])
def test_tracebacks_are_asked_for(words, shown, monkeypatch, capsys):
    monkeypatch.delenv("HF2Q_TRACEBACK", raising=False)
    assert wants_traceback(words) is shown
    ended(ConfigError("bad"), *words)
    assert ("Traceback" in capsys.readouterr().err) is shown


def test_tracebacks_by_the_environment(monkeypatch, capsys):
    monkeypatch.setenv("HF2Q_TRACEBACK", "1")
    ended(ConfigError("bad"))
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_130(capsys):
    assert ended(KeyboardInterrupt()) == exits.INTERRUPTED == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_no_memory_is_said_plainly(capsys):
    assert ended(MemoryError()) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: out of memory\nhint: ")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "error: No space left on device\n"),
        (PermissionError(errno.EACCES, "Permission denied", "/x/y"), "error: Permission denied: /x/y\n"),
    ],
)
def test_what_the_system_refuses_has_no_traceback(error, told, capsys):
    assert ended(error) == 1
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("k"), OSError("no number"), AssertionError("a")])
def test_anything_else_is_a_bug_with_its_traceback(error, capsys):
    assert ended(error) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert type(error).__name__ in err
    assert "this is a bug in hf2q or in a plugin; please report it" in err


def test_an_exit_by_a_command_keeps_its_code():
    with pytest.raises(SystemExit, match="7"):
        ended(SystemExit(7))


def test_a_reader_that_went_away_is_no_error(tmp_path):
    """`hf2q --help | true`: no traceback, not even from the interpreter's last flush."""
    code = "import sys; from hf2q.cli import main; sys.exit(main(['plugins', '--json']))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == exits.READER_GONE == 141
    assert done.stderr == ""


def test_a_closed_stdout_is_no_failure():
    code = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'hf2q', '--version'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_streams_that_the_caller_closed(tmp_path, closed):
    """Their numbers must not go to a file that is being written, nor is a missing stream a reason to fail."""
    code = (
        "import os, sys\n"
        "from hf2q.cli.exits import usable_streams\n"
        "usable_streams()\n"
        "number = os.open('made', os.O_CREAT | os.O_WRONLY)\n"
        "print('a'); print('b', file=sys.stderr)\n"
        "sys.exit(0 if number > 2 else 9)"
    )
    shut = "; ".join(f"os.close({number})" for number in closed)
    launch = f"import os, sys; {shut}; os.execv(sys.executable, [sys.executable, '-c', {code!r}])"
    assert subprocess.run([sys.executable, "-c", launch], cwd=tmp_path, capture_output=True).returncode == 0
    assert (tmp_path / "made").read_bytes() == b""


@pytest.mark.parametrize("encoding", ["ascii", "utf-8:strict"])
def test_names_that_the_terminal_cannot_show_are_escaped(tmp_path, encoding):
    name = b"\xc3\xa9\xff.gguf"
    (tmp_path / os.fsdecode(name)).write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    for words in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "hf2q", "info", name, *words],
            cwd=tmp_path,
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )
        assert (done.returncode, done.stderr) == (0, b"")
    assert os.fsencode(json.loads(done.stdout)["path"]) == name


def test_a_refusal_cannot_steer_the_terminal(capsys):
    ended(ConfigError("bad \x1b[2J\nmore", hint="\x07"))
    assert capsys.readouterr().err == "error: bad \\x1b[2J\nmore\nhint: \\x07\n"


def test_an_interrupt_of_the_process(tmp_path):
    """The signal itself, while a command runs."""
    code = (
        "import os, signal, sys\n"
        "from hf2q.cli.exits import guarded\n"
        "sys.exit(guarded(lambda: os.kill(os.getpid(), signal.SIGINT) or 0, []))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


# ------------------------------------------------------------------------------------------------------- usage errors


@pytest.mark.parametrize(
    ("words", "told", "hint"),
    [
        (["info"], "FILE", "hf2q info --help"),
        (["info", "a", "b"], "b", "hf2q info --help"),
        (["info", "x.gguf", "--bogus"], "--bogus", "hf2q info --help"),
        (["plugins", "check"], "DIST", "hf2q plugins check --help"),
        (["plugins", "new", "x", "--kind", "arch"], "DIRECTORY", "hf2q plugins new --help"),
    ],
)
def test_usage_errors_exit_3_and_point_at_the_help(words, told, hint, capsys):
    assert main(words) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert told in captured.err
    assert captured.err.endswith(f"hint: {hint}\n")


def test_an_unknown_command_names_the_near_one(capsys):
    assert main(["convrt"]) == 3
    err = capsys.readouterr().err
    assert "no command 'convrt'; known: bench, convert" in err
    assert "did you mean 'convert'?" in err


def test_an_unknown_command_with_help_is_no_help_page(capsys):
    assert main(["bogus", "--help"]) == 3
    assert "no command 'bogus'" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------- plugin commands

COMMAND = """
    from hf2q.hookspecs import hookimpl
    from hf2q.types import CommandEntry
    HF2Q_PLUGIN_API = 1

    @hookimpl
    def hf2q_cli_commands():
        yield CommandEntry(name="{name}", command="{where}", help="Greets whom it is told.")
"""
WORK = """
    def command(who: str, *, loud: bool = False) -> int:
        print(f"hello {who}" + "!" * loud)
        return 5
"""


def program(tmp_path, *words, **environment):
    """The program in a process of its own, with what is installed in tmp_path."""
    env = {**os.environ, "PYTHONPATH": str(tmp_path), **environment}
    return subprocess.run([sys.executable, "-m", "hf2q", *words], env=env, capture_output=True, text=True)


def install(tmp_path, name="greet", where="hf2q_fake_work:command", work=WORK):
    plugin = COMMAND.format(name=name, where=where)
    modules = {"hf2q_fake_greet": plugin, "hf2q_fake_work": work}
    write_distribution(tmp_path, "hf2q-greet", {"greet": "hf2q_fake_greet"}, modules)


def test_a_plugin_adds_a_command(tmp_path):
    install(tmp_path)
    done = program(tmp_path, "greet", "you", "--loud")
    assert (done.returncode, done.stdout) == (5, "hello you!\n")
    assert "Greets whom it is told." in program(tmp_path, "greet", "--help").stdout
    assert program(tmp_path, "greet").returncode == 3


def test_a_plugin_command_is_not_imported_for_core_s_own(tmp_path):
    install(tmp_path, work="raise RuntimeError('imported')")
    assert program(tmp_path, "plugins").returncode == 0
    assert program(tmp_path, "--help").returncode == 0


def test_a_plugin_command_that_cannot_be_imported(tmp_path):
    install(tmp_path, work="import hf2q_gone")
    done = program(tmp_path, "greet", "you")
    assert done.returncode == 1
    assert "the command 'greet' of hf2q-greet cannot be imported: ModuleNotFoundError" in done.stderr
    assert "Traceback" not in done.stderr


def test_core_s_commands_cannot_be_replaced_and_the_list_says_so(tmp_path):
    install(tmp_path, name="info")
    assert "Show what is in a GGUF file" in program(tmp_path, "info", "--help").stdout
    assert "the command 'info' of hf2q-greet is not reachable" in program(tmp_path, "plugins").stdout


def test_a_command_that_two_provide(tmp_path):
    install(tmp_path)
    twin = {"hf2q_fake_twin": COMMAND.format(name="greet", where="hf2q_fake_work:command")}
    write_distribution(tmp_path, "hf2q-twin", {"twin": "hf2q_fake_twin"}, twin)
    done = program(tmp_path, "greet", "you")
    assert done.returncode == 1
    assert "'greet' is provided by hf2q-greet and hf2q-twin; neither is used" in done.stderr


def test_the_allow_list_hides_a_plugin_command(tmp_path):
    install(tmp_path)
    write_distribution(tmp_path, "hf2q-other", {"other": "hf2q_fake_other"}, {"hf2q_fake_other": "HF2Q_PLUGIN_API = 1"})
    done = program(tmp_path, "greet", "you", "--plugins", "other")
    assert done.returncode == 3
    assert "no command 'greet'" in done.stderr


def test_a_failed_plugin_is_named_when_a_command_is_missing(tmp_path):
    write_distribution(tmp_path, "hf2q-bad", {"bad": "hf2q_fake_bad"}, {"hf2q_fake_bad": "1 / 0"})
    done = program(tmp_path, "greet")
    assert done.returncode == 3
    assert "plugins that failed to load: bad" in done.stderr


def test_strict_mode_stops_at_a_failed_plugin(tmp_path):
    install(tmp_path)
    write_distribution(tmp_path, "hf2q-bad", {"bad": "hf2q_fake_bad"}, {"hf2q_fake_bad": "1 / 0"})
    done = program(tmp_path, "--strict-plugins", "greet", "you")
    assert done.returncode == 1
    assert "error: plugin 'bad' of hf2q-bad failed at import: ZeroDivisionError" in done.stderr


# ------------------------------------------------------------------------------------------------------------ logging


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        (Settings(), ["warning"]),
        (Settings(verbose=1), ["info", "warning"]),
        (Settings(verbose=2), ["debug", "info", "warning"]),
        (Settings(verbose=2, log_level="error"), []),
        (Settings(log_level="debug"), ["debug", "info", "warning"]),
    ],
)
def test_levels(settings, shown, capsys):
    configure(settings)
    for level in ("debug", "info", "warning"):
        getattr(logging.getLogger("hf2q.convert"), level)("%s", f"<{level}>")
        logging.getLogger("urllib3").debug("<foreign>")
    err = capsys.readouterr().err
    assert [word for word in ("debug", "info", "warning") if f"<{word}>" in err] == shown
    assert "<foreign>" not in err


def test_json_lines(capsys):
    configure(Settings(log_format="json"))
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        logging.getLogger("hf2q_arch_mine").warning("two\nlines %d", 7, exc_info=True)
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["logger"], told["message"]) == ("warning", "hf2q_arch_mine", "two\nlines 7")
    assert "ZeroDivisionError" in told["traceback"]
    assert isinstance(told["time"], float)


def test_configuring_twice_logs_once(capsys):
    configure(Settings())
    configure(Settings())
    logging.getLogger("hf2q").warning("once")
    assert capsys.readouterr().err.count("once") == 1
