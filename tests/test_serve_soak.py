"""A short run of bench/serve_soak.py: clients that come and go leave nothing behind, and see nothing of each other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[1] / "bench" / "serve_soak.py"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_nothing_leaks():
    command = [sys.executable, SOAK, "--seconds", "3", "--streams", "24", "--slots", "6", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr
    told = json.loads(found.stdout)
    assert told["leaks"] == []
    assert told["requests"] > 24
    assert told["left"] > 0
    assert told["cached_tokens"] > 0  # with the prefix cache at work
    assert told["server_cpu_us_per_token"] < 1000
