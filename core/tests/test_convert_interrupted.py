"""Conversions that end in the middle: no final name ever belongs to a part of a file, and the next one succeeds."""

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hf2q.convert.receipt import read_receipt

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
