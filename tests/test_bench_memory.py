"""bench/memory.py: a small mixture of experts stays within the bounds of its receipt."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench" / "memory.py"


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="this system has no os.wait4")
def test_a_small_mixture_stays_within_its_bounds(tmp_path):
    command = [
        sys.executable,
        str(BENCH),
        "--size",
        "tiny-moe",
        "--recipe",
        "bf16",
        "--json",
        "--folder",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["within"]
    assert found["peak_bytes"] - found["planned_bytes"] == found["streaming_bytes"]
    assert 0 < found["bounds"]["piece_bytes"] < found["bounds"]["peak_bytes"]
    assert list(tmp_path.iterdir()) == []
