"""`hf2q.probe`: whatever a plugin does to the process that imports it, it is named and the rest is reported."""

import pytest

from hf2q.errors import UsageError
from hf2q.probe import probe
from hf2q.testing.distributions import write_distribution

FINE = """
    from hf2q.hookspecs import hookimpl
    from hf2q.types import ChatFormat
    HF2Q_PLUGIN_API = 1

    @hookimpl
    def hf2q_chat_formats():
        yield ChatFormat(name="fine")
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs a plugin for child processes; one that works is there already."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for variable in ("HF2Q_PLUGINS", "HF2Q_DISABLE_PLUGINS", "HF2Q_STRICT_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
    write_distribution(tmp_path, "hf2q-zfine", {"zfine": "hf2q_fake_zfine"}, {"hf2q_fake_zfine": FINE})

    def make(source, name="thing"):
        write_distribution(tmp_path, f"hf2q-{name}", {name: f"hf2q_fake_{name}"}, {f"hf2q_fake_{name}": source})

    return make


def outcome(report, name="thing"):
    """The record of one plugin, after checking that a working one which comes later was not lost with it."""
    found = {info.name: info for info in report.plugins}
    assert found["zfine"].status == "loaded"
    assert found["zfine"].provides == {"chat format": ("fine",)}
    assert found["builtin"].status == "loaded"
    return found[name]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import os; os._exit(0)", "ended the process that loads it, with exit status 0"),
        ("import os; os._exit(7)", "ended the process that loads it, with exit status 7"),
        ("import ctypes; ctypes.string_at(0)", "crashed the process that loads it (SIGSEGV)"),
        ("import os; os.abort()", "crashed the process that loads it (SIGABRT)"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt while it loaded"),
        ("raise SystemExit(5)", "SystemExit: 5"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os, sys; os.closerange(3, 256); import time; time.sleep(600)", "closed the files of the process"),
    ],
)
def test_what_ends_the_process_is_blamed_on_the_plugin(install, source, told):
    install(source)
    info = outcome(probe())
    assert info.status == "failed"
    assert told in info.reason
    assert "'thing' of hf2q-thing" in info.reason
    assert info.version == "1.0"
    assert "HF2Q_DISABLE_PLUGINS=thing" in info.hint


@pytest.mark.parametrize(
    "source",
    [
        "import time; time.sleep(600)",
        "while True: print('x' * 1000)",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
    ],
)
def test_a_plugin_that_never_ends_is_stopped(install, monkeypatch, source):
    monkeypatch.setenv("HF2Q_PROBE_SECONDS", "2")
    install(source)
    info = outcome(probe())
    assert info.status == "failed"
    assert "did not finish loading within 2 s" in info.reason


def test_several_bad_plugins_are_all_named(install):
    install("import os; os._exit(1)", "one")
    install("import os; os.abort()", "three")
    install("raise ImportError('gone')", "two")
    report = probe()
    assert {info.name for info in report.failures} == {"one", "three", "two"}
    assert "gone" in outcome(report, "two").reason


@pytest.mark.parametrize(
    "source",
    [
        "print('noise on stdout' * 10000)",
        "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()",
        "import atexit, time; atexit.register(time.sleep, 600)",
        "import sys; sys.stdout.close(); sys.stderr.close()",
        "import os; os.write(1, b'x' * 100000)",
        "import sys; sys.exit = lambda *a: None",
    ],
)
def test_a_noisy_plugin_that_loads_is_loaded(install, source):
    install(f"{source}\nHF2Q_PLUGIN_API = 1")
    assert outcome(probe()).status == "loaded"


def test_what_a_plugin_started_is_ended_with_it(install, tmp_path):
    mark = tmp_path / "mark"
    child = f"import time, pathlib; time.sleep(1.5); pathlib.Path({str(mark)!r}).touch()"
    install(f"import subprocess, sys, os\nsubprocess.Popen([sys.executable, '-c', {child!r}])\nos._exit(1)")
    assert outcome(probe()).status == "failed"
    import time

    time.sleep(2.5)
    assert not mark.exists()


def test_clashes_are_problems(install):
    install(FINE)
    (problem,) = probe().problems
    assert "chat format 'fine' is provided by hf2q-thing and hf2q-zfine" in problem.message


def test_the_filters_hold(install, monkeypatch):
    install("import os; os._exit(1)")
    monkeypatch.setenv("HF2Q_DISABLE_PLUGINS", "thing")
    assert outcome(probe()).status == "disabled"


def test_an_allow_list_that_names_nothing_installed_is_a_problem_not_an_end(install, monkeypatch):
    install("import os; os._exit(1)")
    monkeypatch.setenv("HF2Q_PLUGINS", "zfine,thong")
    report = probe()
    assert "not installed: thong" in report.problems[0].message
    assert outcome(report).status == "disabled"


def test_an_allowed_plugin_that_crashes(install, monkeypatch):
    install("import os; os._exit(1)")
    monkeypatch.setenv("HF2Q_PLUGINS", "zfine,thing")
    report = probe()
    assert not report.problems
    assert outcome(report).status == "failed"


def test_strict_mode_does_not_stop_the_list(install, monkeypatch):
    install("1 / 0")
    monkeypatch.setenv("HF2Q_STRICT_PLUGINS", "1")
    assert outcome(probe()).status == "failed"


def test_damaged_metadata_hides_no_other_plugin(install, tmp_path):
    for name, listed, metadata in [
        ("noname", "[hf2q]\nnoname = m\n", None),
        ("garbled", "[hf2q]\nno equals sign\n", "Metadata-Version: 2.1\nName: hf2q-garbled\nVersion: 3\n"),
        ("bytes", "\xff[hf2q]\nx = m\n", "Metadata-Version: 2.1\nName: hf2q-bytes\nVersion: 3\n"),
    ]:
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_bytes(listed.encode("latin-1"))
        if metadata:
            (info / "METADATA").write_text(metadata)
    report = probe()
    assert outcome(report, "hf2q-garbled").status == "failed"
    assert outcome(report, "hf2q-bytes").version == "3"
    assert any("(no name, in" in info.name for info in report.failures)


def test_a_bad_limit_is_refused(monkeypatch):
    monkeypatch.setenv("HF2Q_PROBE_SECONDS", "soon")
    with pytest.raises(UsageError, match="HF2Q_PROBE_SECONDS"):
        probe()
