"""The tests of the coarse types again on every narrower path that this machine can run, each in its own process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf2q.simd import LANES

AGAIN = str(Path(__file__).parent / "test_kernels_coarse.py")
WHICH = {8: "not oracle or adversarial", 4: "IQ3_S and (not oracle or adversarial)"}
"""By the number of lanes; at four, of processors before 2013, one type stands for all."""


@pytest.mark.parametrize("lanes", [8, 4])
def test_coarse_kernels_at_a_narrower_width(lanes):
    if lanes >= LANES:
        pytest.skip(f"this machine, or HF2Q_SIMD_LANES, has {LANES} lanes: that path is the one already tested")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", AGAIN, "-k", WHICH[lanes]]
    env = os.environ | {"HF2Q_SIMD_LANES": str(lanes)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
