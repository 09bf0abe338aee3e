"""Weights left in the file (`load(later=True)`): one forward pass reads them there, as if they were repacked."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from hf2q.convert import convert
from hf2q.serve.load import load
from hf2q.testing import require_fixture

IDS = list(range(20, 28))


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe", "gemma4", "deepseek_v4"])
def test_one_forward_pass_repacks_nothing_but_experts(family, tmp_path):
    source = Path(__file__).parent / "data" / family
    if not source.is_dir():
        source = require_fixture(family)
    path = tmp_path / "m.gguf"
    convert(source, "q8_0", path, sidecars=False, receipt=False)
    found = []
    for later in (False, True):
        with load(path, backend="cpu", threads=2, ctx=64, later=later) as model:
            sequence = model.sequence()
            found.append(sequence.next_logits(IDS).copy())
            waiting = model._ops._linear.in_file
            assert bool(waiting) == later
            assert all(matrix.in_file is not None for matrix in waiting)
            found.append(sequence.next_logits([30]).copy())
            assert not model._ops._linear.in_file
    for a, b in zip(found[:2], found[2:], strict=True):
        assert (np.asarray(a) == np.asarray(b)).all()
