"""Importance matrices of every generating family against llama-imatrix (data/PROVENANCE.md)."""

import json
from pathlib import Path

import numpy as np
import pytest

from hf2q.convert import convert
from hf2q.quality.imatrix.compute import compute
from hf2q.quality.shipped import open_corpus
from hf2q.testing import require_fixture

DATA = Path(__file__).parent / "data"
GOLDEN = json.loads((DATA / "imatrix.golden.json").read_text())
POOLED = "attn_output_a.weight"
"""One matrix in the file, a stack of groups for llama-imatrix: `Watched.grouped_linear`."""

pytestmark = pytest.mark.fixtures


@pytest.mark.parametrize("family", GOLDEN)
def test_names_counts_and_sums(family, tmp_path):
    pytest.importorskip("numba")
    convert(require_fixture(family), "f32", tmp_path / "model.gguf", sidecars=False)
    text = open_corpus(str(DATA / "eval.txt"))
    entries = compute(tmp_path / "model.gguf", text, n_ctx=128, most=4, output=True).entries
    assert sorted(entries) == sorted(GOLDEN[family])
    rerouted = []
    for name, (counts, totals, first) in GOLDEN[family].items():
        found = entries[name]
        if name.endswith(POOLED):
            groups = found.counts.sum() // counts[0]
            assert found.counts.tolist() == [groups * counts[0]]
            np.testing.assert_allclose(found.sums.sum(), totals[0], rtol=1e-2)
            continue
        if (
            found.counts.tolist() != counts
        ):  # a token between two experts that are equally good goes one way or the other
            assert np.abs(found.counts - counts).max() == 1
            rerouted.append(name)
            continue
        np.testing.assert_allclose(found.sums.sum(1), totals, rtol=1e-2, atol=1e-3)
        np.testing.assert_allclose(found.sums.reshape(-1)[:4], first, rtol=1e-2, atol=1e-3)
    layers = {name.split(".")[1] for name in rerouted}
    assert len(layers) <= (1 if family == "gemma4_moe" else 0)
