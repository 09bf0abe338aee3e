"""The forward pass: the laws of every graph, the logits of transformers, and what is special about the family."""

import msgspec
import numpy as np
import pytest

from hf2q.errors import LoadError
from hf2q.plugins import Plugins
from hf2q.serve.chat.reasoning import ReasoningSplitter
from hf2q_arch_gemma4.hf2q_contract import (
    NEVER_USED,
    REFERENCE,
    TestDenseGraph,
    TestMoEGraph,  # noqa: F401
    TestSmallGraph,
)


class WithUnusedKeys(TestSmallGraph):
    """A file that carries keys and values of blocks which use those of earlier ones."""

    __test__ = False
    leave_out = ()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Tensors of a model with per-layer inputs and shared keys and values, those that nothing uses among them."""
    return WithUnusedKeys().tensors(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """Tensors of a dense model whose full attention uses its keys as values."""
    return TestDenseGraph().tensors(tmp_path_factory.mktemp("dense"))


def test_keys_and_values_of_sharing_blocks_are_not_used(small):
    """A file may have them or not: the logits are the same bits, and they are not even read."""
    suite = TestSmallGraph()
    assert set(NEVER_USED) < small.keys()
    whole = suite.build("reference", small)
    rest = suite.build("reference", {name: array for name, array in small.items() if name not in NEVER_USED})
    ids = suite.ids(1, 30)
    assert np.array_equal(whole.logits(ids), rest.logits(ids))
    assert not whole.taken & set(NEVER_USED)


def test_sharing_blocks_have_no_cache_of_their_own(small):
    """Three of six blocks have keys and values, and only what a window needs is kept of sliding ones."""
    suite = TestSmallGraph()
    model = suite.build("reference", small)
    cache = model.graph.new_cache()
    assert len(cache.parts) == 3
    ids = suite.ids(1, 600)
    parts = [model.logits(ids[:, start : start + 100], cache) for start in range(0, 600, 100)]
    suite.close(np.concatenate(parts, 1), model.logits(ids), "600 tokens in six pieces")
    assert [part.length for part in cache.parts] == [600] * 3
    sliding, _, full = cache.parts
    assert full.first == 0
    assert 600 - sliding.first < 400
    assert not cache.can_trim(100)
    assert cache.can_trim(599)


def test_blocks_share_with_the_last_of_their_kind(small):
    """Other keys in the last sliding block that has some reach the sharing ones: those of the first do not suffice."""
    suite = TestSmallGraph()
    h = suite.checkpoint().hparams
    model = suite.build("reference", small)
    assert h.layer_kinds == (
        "sliding_attention",
        "sliding_attention",
        "full_attention",
        "sliding_attention_shared_kv",
        "sliding_attention_shared_kv",
        "full_attention_shared_kv",
    )
    seen = []
    for block in model.graph.blk:
        attend = block.attention.ops.attention
        block.attention.ops = Watched(block.attention.ops, attend, seen)
    model.logits(suite.ids(1, 5))
    assert [keys is seen[1] for keys in seen] == [False, True, False, True, True, False]
    assert [keys is seen[2] for keys in seen] == [False, False, True, False, False, True]


class Watched:
    """Ops that note the keys of attention."""

    def __init__(self, ops, attend, seen):
        self._ops, self._attend, self._seen = ops, attend, seen

    def __getattr__(self, name):
        return getattr(self._ops, name)

    def attention(self, q, keys, values, scale, **options):
        """Note the keys."""
        self._seen.append(keys)
        return self._attend(q, keys, values, scale, **options)


def test_pairs_that_stand_still_have_the_frequency_0(dense):
    """As transformers has them; half of the ten pairs of a head of full attention turn."""
    rotations = TestDenseGraph().build("reference", dense).graph.rotations
    assert (rotations.full[:5] > 0).all()
    assert (rotations.full[5:] == 0).all()
    assert (rotations.swa > 0).all()


@pytest.mark.parametrize("value", [0, np.inf, np.nan])
def test_rope_freqs_that_cannot_divide_are_refused(dense, value):
    """Rather than logits that are no numbers."""
    freqs = dense["rope_freqs.weight"].copy()
    freqs[3] = value
    with pytest.raises(LoadError, match=r"rope_freqs\.weight.* (0 or not finite|nan|inf|infinit|NaN|finite)"):
        TestDenseGraph().build("reference", {**dense, "rope_freqs.weight": freqs})


def test_attention_both_ways_is_refused(dense):
    """The graph is causal, so it must not run a model that is not."""
    suite = TestDenseGraph()
    both = msgspec.structs.replace(suite.checkpoint().hparams, causal=False)
    with pytest.raises(LoadError, match="both ways"):
        suite.build("reference", dense, both)


def test_values_must_not_be_missing_where_attention_slides(dense):
    """Only full attention may use its keys as values."""
    rest = {name: array for name, array in dense.items() if name != "blk.0.attn_v.weight"}
    with pytest.raises(LoadError, match=r"blk\.0\.attn_v\.weight"):
        TestDenseGraph().build("reference", rest)


def test_logits_are_bounded(dense):
    """By the softcap, however large the output head's numbers are."""
    suite = TestDenseGraph()
    large = {**dense, "output.weight": dense["output.weight"] * 1000}
    logits = suite.build("reference", large).logits(suite.ids(1, 8))
    assert 24.9 < np.abs(logits).max() <= 25


def test_the_recorded_logits_are_not_trivial():
    """The reference must move: a graph that ignored its input could not pass."""
    for name in ("dense", "small", "moe"):
        with np.load(REFERENCE / f"{name}.npz") as recorded:
            assert recorded["ids"].shape[1] > 10 * 9  # ten windows
            assert len(set(recorded["logits"].argmax(-1).ravel().tolist())) > 20


@pytest.mark.parametrize("gap", ["\n", ""])
def test_reasoning_is_told_from_the_answer(gap):
    """In a channel at the beginning of the turn, with and without a line break after its name."""
    splitter = ReasoningSplitter(Plugins.load().chat_format("gemma4").reasoning, inside=False)
    parts = [splitter.feed(c) for c in f"<|channel>thought{gap}Why\nnot?\n<channel|>Yes."] + [splitter.finish()]
    assert "".join(part.reasoning for part in parts) == "Why\nnot?"
    assert "".join(part.content for part in parts) == "Yes."
