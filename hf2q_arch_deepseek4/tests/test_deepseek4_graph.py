"""The forward pass: the laws of every graph, the logits that transformers computes, and what is special about it."""

import math
import re

import numpy as np
import pytest

from hf2q.backends.reference import ReferenceOps
from hf2q.backends.weights import ArraySource, Weights
from hf2q.errors import LoadError
from hf2q.plugins import Plugins
from hf2q_arch_deepseek4.graph_ffn import routing_table
from hf2q_arch_deepseek4.graph_step import stretched
from hf2q_arch_deepseek4.hf2q_contract import TestGraph
from hf2q_arch_deepseek4.hparams import Yarn

OPS = ReferenceOps(threads=1)


def test_the_recorded_logits_reach_every_part():
    """Beyond an entry of heavy attention, and more entries than the indexer may choose."""
    hparams = TestGraph.checkpoint().hparams
    with np.load(TestGraph.reference) as recorded:
        tokens = recorded["ids"].shape[1]
        assert tokens > 128
        assert tokens // 4 > 2 * hparams.index_top_k
        assert len(set(recorded["logits"].argmax(-1).ravel().tolist())) > 20
    assert hparams.layer_kinds == ("sliding_hash", "sparse_top_k", "heavy_top_k")


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    return TestGraph().tensors(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", params=["reference", "mlx"])
def model(request, tensors):
    return TestGraph().build(request.param, tensors)


@pytest.fixture(scope="module")
def ids():
    return TestGraph().ids(1, 300, seed=30)


def test_decoding_gathers_what_prefilling_masks(model, ids):
    """Far beyond what the indexer may choose, across the end of an entry of heavy attention."""
    whole = model.logits(ids[:, :134])
    cache = model.graph.new_cache()
    model.logits(ids[:, :121], cache)
    steps = [model.logits(ids[:, t : t + 1], cache) for t in range(121, 134)]
    TestGraph().close(np.concatenate(steps, 1), whole[:, 121:], "decoding")


@pytest.mark.parametrize("start", [126, 127, 128, 131, 290])
def test_tokens_of_the_last_call_can_always_be_taken_back(model, ids, start):
    """Speculation: several tokens in one call, some of them refused, wherever blocks begin and end."""
    cache = model.graph.new_cache()
    model.logits(ids[:, :start], cache)
    model.logits((ids[:, start : start + 6] + 1) % 272, cache)
    for keep in (start + 5, start + 2, start):
        assert cache.can_trim(keep)
        cache.trim(keep)
        assert cache.position == keep
    found = model.logits(ids[:, start : start + 9], cache)
    TestGraph().close(found, model.logits(ids[:, : start + 9])[:, start:], f"after going back to {start}")


def test_what_was_dropped_is_not_pretended(model, ids):
    """Far back is refused once rows were dropped; wherever it is allowed the result is that of a fresh cache."""
    cache = model.graph.new_cache()
    for start in range(0, 300, 50):
        model.logits(ids[:, start : start + 50], cache)
    allowed = [keep for keep in range(301) if cache.can_trim(keep)]
    assert allowed[0] == 0
    assert 300 in allowed
    assert not cache.can_trim(20)
    assert allowed[1:] == list(range(allowed[1], 301))  # nothing between
    for keep in (allowed[1], allowed[1] + 1, allowed[1] + 3):
        other = cache.copy()
        other.trim(keep)
        found = model.logits(ids[:, keep : keep + 7], other)
        TestGraph().close(found, model.logits(ids[:, : keep + 7])[:, keep:], f"after going back to {keep}")
    cache.trim(0)
    TestGraph().close(model.logits(ids[:, :40], cache), model.logits(ids[:, :40]), "after emptying")


@pytest.mark.parametrize("position", [1, 3, 4, 127, 128, 230])
def test_every_state_can_be_saved(model, ids, position):
    """In the middle of entries, at their ends, and after rows were dropped."""
    cache, other = model.graph.new_cache(), model.graph.new_cache()
    for start in range(0, position, 60):
        model.logits(ids[:, start : min(start + 60, position)], cache)
    other.restore(cache.save())
    assert {name: array.shape for name, array in other.save().items()} == {
        name: array.shape for name, array in cache.save().items()
    }
    found = model.logits(ids[:, position : position + 9], other)
    TestGraph().close(found, model.logits(ids[:, : position + 9])[:, position:], f"restored at {position}")


def test_scores_are_the_same_in_pieces(tensors, ids, monkeypatch):
    """Of a long prompt the indexer scores a few queries at a time."""
    model = TestGraph().build("reference", tensors)
    whole = model.logits(ids[:, :90])
    monkeypatch.setattr("hf2q_arch_deepseek4.graph_compress.SCORES", 11 * 22 * 7)
    TestGraph().close(model.logits(ids[:, :90]), whole, "in pieces")


def test_experts_may_be_weighed_without_a_sum_of_one(tensors, ids):
    """What the file says counts, though published models all say yes."""
    import msgspec

    hparams = TestGraph.checkpoint().hparams
    model = TestGraph().build("reference", tensors)
    other = TestGraph().build("reference", tensors, msgspec.structs.replace(hparams, expert_norm=False))
    assert np.abs(model.logits(ids[:, :5]) - other.logits(ids[:, :5])).max() > 0.01


def test_yarn_leaves_fast_pairs_and_slows_down_others():
    frequencies = np.float32([1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125])
    yarn = Yarn(factor=8, original=256, beta_fast=16, beta_slow=2)
    found = stretched(frequencies, 256.0, yarn)
    # pair j turns 256·2^-j / 2π times: 16 times at j = 1.35, rounded down, and twice at j = 4.35, rounded up
    slow = np.clip((np.arange(8) - 1) / 4, 0, 1)
    assert np.allclose(found, frequencies * (1 - slow + slow / 8), rtol=1e-6)
    usual = stretched(frequencies, 256.0, Yarn(factor=8, original=256))
    # 32 times at j = 0.35, once at j = 5.35
    slow = np.clip(np.arange(8) / math.ceil(5.35), 0, 1)
    assert np.allclose(usual, frequencies * (1 - slow + slow / 8), rtol=1e-6)


@pytest.mark.parametrize("wrong", [3.0, -1.0, 0.5])
def test_routes_to_experts_that_there_are_not_are_refused(wrong):
    table = np.zeros((5, 2), np.float32)
    table[3, 1] = wrong
    weights = Weights(ArraySource({"t": table}), Plugins.load().codec, OPS)
    with pytest.raises(LoadError, match=re.escape(f"t: token 3 is sent to expert {wrong:g}, expected 0 to 2")):
        routing_table(weights, OPS, "t", 3)
