"""The kernel tests again on every narrower path that this machine can run, each in its own process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf2q.simd import LANES

HERE = Path(__file__).parent
WHICH = {8: "not any_block", 4: "Q4_K or Q6_K or IQ4_XS or Q8_0"}
"""By the number of lanes; at four, of processors before 2013, a few types stand for all: each compiles for a second."""
AGAIN = [str(HERE / name) for name in ("test_kernels_encode.py", "test_kernels_decode.py")]


@pytest.mark.parametrize("lanes", [8, 4])
def test_kernels_at_a_narrower_width(lanes):
    if lanes >= LANES:
        pytest.skip(f"this machine, or HF2Q_SIMD_LANES, has {LANES} lanes: that path is the one already tested")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *AGAIN, "-k", WHICH[lanes]]
    env = os.environ | {"HF2Q_SIMD_LANES": str(lanes)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
