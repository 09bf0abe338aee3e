"""The forward pass: the laws of every graph, and the logits that transformers computes from the same weights."""

import re

import msgspec
import numpy as np
import pytest

from hf2q.backends.reference import ReferenceOps
from hf2q.backends.weights import ArraySource, Weights
from hf2q.errors import LoadError
from hf2q.plugins import Plugins
from hf2q_arch_qwen35.graph import Qwen35Graph
from hf2q_arch_qwen35.hf2q_contract import REFERENCE, TestDenseGraph, TestMoEGraph  # noqa: F401


def test_rope_sections_that_do_not_cover_the_head_are_refused():
    """Time, height and width must take turns over all rotary pairs: sources disagree about anything else."""
    hparams = TestDenseGraph.checkpoint().hparams
    weights = Weights(ArraySource({}), Plugins.load().codec, ReferenceOps(threads=1))
    wrong = msgspec.structs.replace(hparams, rope_sections=(1, 1, 1, 1))
    with pytest.raises(LoadError, match=re.escape("sections [1, 1, 1, 1] do not cover 4 rotary pairs")):
        Qwen35Graph(wrong, weights, ReferenceOps(threads=1))


def test_the_recorded_logits_are_not_trivial():
    """The reference must move: a graph that ignored its input could not pass."""
    for name in ("dense", "moe"):
        with np.load(REFERENCE / f"{name}.npz") as recorded:
            assert recorded["ids"].shape[1] > 128  # beyond two chunks of the gated delta rule
            assert len(set(recorded["logits"].argmax(-1).ravel().tolist())) > 20
