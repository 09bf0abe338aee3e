"""Conversions that end in the middle: no final name ever belongs to a part of a file, and the next one succeeds."""

import hashlib
import importlib.util
import json
import signal
import subprocess
import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from hf2q.convert import convert
from hf2q.convert.receipt import read_receipt
from hf2q.convert.unbroken import unbroken
from hf2q.formats.gguf.writer import GgufWriter
from hf2q.plugins import Plugins

DATA = Path(__file__).parent / "data"
OLD = b"an older file"


@pytest.fixture
def family(monkeypatch):
    spec = importlib.util.spec_from_file_location("fake_family", DATA / "fake_family.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fake_family", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(family, tmp_path):
    folder = family.write_checkpoint(tmp_path / "model")
    (folder / "generation_config.json").write_text("{" + " " * 300_000 + "}")
    return folder


@pytest.fixture
def script(folder, tmp_path):
    """Start the script; each `next` of it goes on to the next line it prints, parsed."""
    out = tmp_path / "out"
    out.mkdir()
    running = []

    def lines(mode, *more):
        command = [sys.executable, "-P", str(DATA / "interrupted_conversions.py"), mode, str(folder), str(out), *more]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(process)
        for line in process.stdout:
            told = json.loads(line)
            yield told
            if "status" in told:
                process.stdin.write("\n")
                process.stdin.flush()

    yield lines
    for process in running:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait()


def contents(out):
    """SHA-256 by name of what has a final name; the receipt, in which times differ, without a digest."""
    return {
        path.name: None if path.name.endswith(".receipt.json") else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in out.iterdir()
        if not path.name.startswith(".")
    }


def check_receipt(out):
    """A receipt never tells of other files than those beside it."""
    for path in out.glob("*.receipt.json"):
        receipt = read_receipt(path)
        for file in (*receipt.outputs, *receipt.sidecars):
            assert hashlib.sha256((out / file.name).read_bytes()).hexdigest() == file.sha256, file.name


@pytest.mark.parametrize(("old", "step"), [(False, 2), (True, 3)], ids=["new", "replacing"])
def test_killed_at_any_operation(script, tmp_path, old, step):
    out = tmp_path / "out"
    told = script("kill", str(step))
    assert next(told) == {"status": 0}
    expected = contents(out)
    assert len([name for name in expected if name.endswith(".gguf")]) == 2
    before = hashlib.sha256(OLD).hexdigest()
    partial = 0

    def reset():
        for path in out.iterdir():
            path.unlink()
            if old and not path.name.startswith(".") and path.suffix != ".json":
                path.write_bytes(OLD)

    reset()
    for event in told:
        if "after" in event:  # killed, but for the last time
            for name, digest in contents(out).items():
                assert digest in (expected[name], before) if old else digest == expected[name], (event, name)
            check_receipt(out)
            partial += any(path.name.startswith(".") for path in out.iterdir())
            if event["status"] == 0:
                break
            assert event["status"] == -9, event
        else:  # the next conversion of the same
            assert event["status"] == 0
            assert contents(out) == expected
            check_receipt(out)
            assert not [path for path in out.iterdir() if path.name.startswith(".")]
            reset()
    assert partial > 3, "the conversion was hardly ever killed while it wrote"


@pytest.mark.parametrize(("limit", "left"), [(1000, 0), (20_000, 0), (200_000, 2)])
def test_a_disk_that_is_full(script, tmp_path, limit, left):
    """At the header, in the middle of a shard, and when sidecars are copied after both are complete."""
    told = list(script("limit", str(limit)))
    assert told[0]["error"] == "WriteError"
    assert told[0]["code"] == told[1]["status"] == 1
    assert "cannot be written" in told[0]["message"]
    assert told[0]["hint"]
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert [name for name in names if name.endswith(".gguf")] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"][
        :left
    ]
    assert not [
        name
        for name in names
        if name.startswith(".") or name.startswith("generation") or name.endswith(".receipt.json")
    ]


class Ended(BaseException):
    """By a signal."""


@pytest.fixture
def ends():
    """SIGTERM and SIGINT raise `Ended`."""

    def end(number, frame):
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    yield end
    for number, handler in before.items():
        assert signal.getsignal(number) is end, "the handler is there again"
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_between_name_and_receipt_waits_for_the_receipt(folder, tmp_path, monkeypatch, ends, number):
    publish = GgufWriter.publish

    def interrupted(self):
        publish(self)
        signal.raise_signal(number)

    monkeypatch.setattr(GgufWriter, "publish", interrupted)
    points = [("builtin", "hf2q.builtin"), ("fake", "fake_family")]
    plugins = Plugins.load(strict=True, entry_points=[EntryPoint(n, v, "hf2q") for n, v in points])
    (tmp_path / "out").mkdir()
    with pytest.raises(Ended):
        convert(folder, "f16", tmp_path / "out" / "m.gguf", plugins=plugins)
    found = contents(tmp_path / "out")
    assert {"m.gguf", "m.gguf.receipt.json", "config.json"} <= found.keys()
    check_receipt(tmp_path / "out")


def test_signals_wait_and_come_once(ends):
    done = []

    def work():
        with unbroken():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                signal.raise_signal(number)
                done.append(number)

    with pytest.raises(Ended) as caught:
        work()
    assert len(done) == 3
    assert caught.value.args == (signal.SIGTERM,)


def test_signals_that_nobody_handles_are_left_alone(ends):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with unbroken():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_have_no_signals(ends):
    def work():
        with unbroken():
            assert signal.getsignal(signal.SIGTERM) is ends
            done.append(1)

    done = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done
