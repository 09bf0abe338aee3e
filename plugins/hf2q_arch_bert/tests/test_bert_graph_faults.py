"""The encoder suite catches what can be wrong with an encoder: each fault is put into the forward pass by hand."""

import pytest

from hf2q.backends.reference import ReferenceOps
from hf2q.testing.verdicts import failures
from hf2q_arch_bert import graph
from hf2q_arch_bert.hf2q_contract import TestBertEncoder as BertSuite
from hf2q_arch_bert.hf2q_contract import TestNomicEncoder as NomicSuite

REFERENCE = "test_states_equal_the_recorded_reference"
PADDING = "test_padding_is_seen_by_nothing"
BATCH = "test_texts_of_a_batch_are_independent"
SIGHT = "test_every_token_sees_every_other"
ORDER = "test_the_order_of_tokens_matters"


def causal(ops, h, q, k, v, lengths):
    keys, values = ([part[row].transpose(1, 0, 2) for row in range(len(lengths))] for part in (k, v))
    return ops.attention(q, keys, values, h.head_dim**-0.5).reshape(*q.shape[:2], h.n_embd)


def padding_seen(ops, h, q, k, v, lengths):
    return attention(ops, h, q, k, v, [q.shape[1]] * len(lengths))


def one_length_for_all(ops, h, q, k, v, lengths):
    return attention(ops, h, q, k, v, [max(lengths)] * len(lengths))


def other_scale(ops, h, q, k, v, lengths):
    return attention(ops, h, q * 1.1, k, v, lengths)


attention = graph._attention
FAULTS = {
    "causal": (BertSuite, graph, "_attention", causal, {REFERENCE, SIGHT, ORDER}),
    "padding is seen": (BertSuite, graph, "_attention", padding_seen, {PADDING, BATCH}),
    "the longest text's length for all": (NomicSuite, graph, "_attention", one_length_for_all, {BATCH}),
    "another scale": (NomicSuite, graph, "_attention", other_scale, {REFERENCE}),
    "GELU by tanh": (BertSuite, ReferenceOps, "gelu", ReferenceOps.gelu_tanh, {REFERENCE}),
    "no positions": (NomicSuite, ReferenceOps, "rope", lambda ops, x, *a, **b: x, {REFERENCE, ORDER}),
    "pairs that are neighbours": (
        NomicSuite,
        ReferenceOps,
        "rope",
        lambda ops, x, cos, sin, rope=ReferenceOps.rope: rope(ops, x, cos, sin, pairs=True),
        {REFERENCE},
    ),
    "gate and up the other way round": (
        NomicSuite,
        ReferenceOps,
        "swiglu",
        lambda ops, gate, up: ops.silu(up) * gate,
        {REFERENCE},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_caught(fault, monkeypatch, tmp_path):
    suite, place, name, wrong, caught = FAULTS[fault]
    monkeypatch.setattr(place, name, wrong)
    assert set(failures(suite, tmp_path, only=sorted(caught))) == caught


def test_without_recorded_states_there_is_no_verdict(monkeypatch, tmp_path):
    monkeypatch.setattr(BertSuite, "reference", None)
    monkeypatch.setattr(graph, "_attention", other_scale)
    assert failures(BertSuite, tmp_path, only=[REFERENCE]) == {}


def test_a_tensor_that_is_said_to_be_idle_must_be(monkeypatch, tmp_path):
    monkeypatch.setattr(NomicSuite, "idle", {r"blk\.1\.ffn_up\.weight": "a mistake"})
    (message,) = failures(NomicSuite, tmp_path, only=["test_every_tensor_matters"]).values()
    assert "blk.1.ffn_up.weight, said to be idle" in message
