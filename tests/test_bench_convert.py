"""bench/convert.py: the checkpoints it makes can be converted, and it counts what it says."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from hf2q.convert import convert

BENCH = Path(__file__).resolve().parents[1] / "bench"


def script(name):
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_checkpoint_is_complete_and_the_same_every_time(tmp_path):
    checkpoint = script("checkpoint")
    parameters = checkpoint.make(tmp_path / "a", "tiny")
    assert convert(tmp_path / "a", "q4_k_m", tmp_path, dry_run=True).plan.parameters == parameters
    checkpoint.make(tmp_path / "b", "tiny")
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert "model.safetensors" in names
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


@pytest.mark.parametrize("size", ["0.1", "0.6", "5"])
def test_sizes_are_what_they_are_called(size):
    checkpoint = script("checkpoint")
    count = sum(checkpoint.math.prod(shape) for _, _, shape in checkpoint.tensors(checkpoint.MODELS[size]))
    assert abs(count / float(size) / 1e9 - 1) < 0.02


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="this system has no os.wait4")
def test_memory_and_time_of_a_process_are_counted():
    measured = script("convert").measured
    found = measured([sys.executable, "-c", "x = b'?' * (300 << 20); sum(range(3_000_000))"])
    assert 300 << 20 < found["peak_bytes"] < 64 << 30  # a child begins with the memory of this process
    assert found["cpu_s"] > 0
    assert found["wall_s"] > 0


def test_a_process_that_fails_is_reported():
    bench = script("convert")
    with pytest.raises(bench.Failed, match=r"(?s)ended with 3:.*the reason"):
        bench.measured([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"])
