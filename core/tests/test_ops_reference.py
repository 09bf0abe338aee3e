"""The reference ops against their formulas: scalar loops, values worked by hand, and laws."""

import inspect
import math

import numpy as np
import pytest

from hf2q.backends import rope
from hf2q.backends.ops import Ops
from hf2q.backends.reference import ReferenceOps, available, priority
from hf2q.codec import QuantCodec
from hf2q.errors import LoadError

OPS = ReferenceOps(threads=1)
F32 = QuantCodec(name="F32", ggml_type=0, block_size=1, type_size=4, encoder="", decoder=f"{__name__}:decode_f32")


def decode_f32(data, out):
    out[...] = np.ascontiguousarray(data).view("<f4")


def rng(seed=0):
    return np.random.default_rng(seed)


def normal(*shape, seed=0):
    return rng(seed).standard_normal(shape).astype(np.float32)


def dense(values):
    from hf2q.backends.reference.ops import DenseMatrix

    return DenseMatrix(values)


def test_every_op_of_the_vocabulary_is_implemented():
    for name, op in inspect.getmembers(Ops, inspect.isfunction):
        if not name.startswith("_"):
            own = getattr(ReferenceOps, name)
            assert own is not op, f"{name} is missing"
            assert inspect.signature(own).parameters.keys() == inspect.signature(op).parameters.keys()


def test_it_is_always_available_and_never_preferred():
    assert available() is None
    assert priority() == 0


def test_matrix_decodes_blocks_into_their_shape():
    values = normal(2, 3, 4)
    matrix = OPS.matrix(values.reshape(6, 4).view(np.uint8), F32, (2, 3, 4))
    assert matrix.shape == (2, 3, 4)
    assert matrix.nbytes == 96
    assert not matrix.quantized
    assert np.array_equal(matrix.values, values)


def test_write_replaces_positions_and_copy_protects_from_it():
    buffer = OPS.zeros((2, 5, 3))
    kept = OPS.copy(buffer)
    values = normal(2, 2, 3)  # (T, G, D)
    written = OPS.write(buffer, values, 2)
    assert np.array_equal(written[:, 2:4], values.swapaxes(0, 1))
    assert not written[:, [0, 1, 4]].any()
    assert not kept.any()


def test_linear_and_embedding():
    weight, x = normal(4, 3), normal(2, 5, 3, seed=1)
    expected = [
        [[sum(float(a) * float(b) for a, b in zip(row, w, strict=True)) for w in weight] for row in r] for r in x
    ]
    assert np.allclose(OPS.linear(x, dense(weight)), expected, atol=1e-6)
    ids = np.array([[0, 3], [2, 2]], np.int32)
    assert np.array_equal(OPS.embedding(ids, dense(weight)), weight[[[0, 3], [2, 2]]])


def test_moe_is_the_weighted_sum_of_the_chosen_experts():
    x = normal(2, 3, 4)
    gate, up, down = normal(5, 6, 4, seed=1), normal(5, 6, 4, seed=2), normal(5, 4, 6, seed=3)
    experts = np.array([rng(i).permutation(5)[:2] for i in range(6)], np.int32).reshape(2, 3, 2)
    experts[1, 2, 1] = experts[1, 2, 0]  # a table of routes may name an expert twice
    weights = rng(9).random((2, 3, 2)).astype(np.float32)
    got = OPS.moe(x, experts, weights, (dense(gate), dense(up)), dense(down), OPS.swiglu)
    fused = OPS.moe(x, experts, weights, (dense(np.concatenate([gate, up], axis=1)),), dense(down), OPS.swiglu)
    assert np.allclose(fused, got, atol=1e-6)
    for b in range(2):
        for t in range(3):
            expected = np.zeros(4)
            for e, w in zip(experts[b, t], weights[b, t], strict=True):
                g, u = gate[e] @ x[b, t], up[e] @ x[b, t]
                expected += w * (down[e] @ (g / (1 + np.exp(-g)) * u))
            assert np.allclose(got[b, t], expected, atol=1e-5)


@pytest.mark.parametrize("x", [-1000.0, -20.0, -1.5, 0.0, 0.3, 20.0, 1000.0])
def test_elementwise(x):
    array = np.array([x], np.float32)
    sigmoid = 1 / (1 + math.exp(-x)) if x > -700 else 0.0
    with np.errstate(all="raise", under="ignore"):
        assert OPS.sigmoid(array)[0] == pytest.approx(sigmoid, rel=1e-6, abs=1e-30)
        assert OPS.silu(array)[0] == pytest.approx(x * sigmoid, rel=1e-6, abs=1e-30)
        expected = x if x > 30 else math.log1p(math.exp(x)) if x > -700 else 0.0
        assert OPS.softplus(array)[0] == pytest.approx(expected, rel=1e-6, abs=1e-30)
        assert OPS.swiglu(array, array + 1)[0] == pytest.approx(x * sigmoid * (x + 1), rel=1e-6, abs=1e-25)
        assert OPS.exp(np.minimum(array, 50))[0] == pytest.approx(math.exp(min(x, 50)), rel=1e-6, abs=1e-30)


def test_elementwise_keeps_float32():
    x = normal(3)
    for op in (OPS.sigmoid, OPS.silu, OPS.softplus, OPS.softmax, OPS.exp, OPS.sum):
        assert op(x).dtype == np.float32, op.__name__
    assert OPS.rms_norm(x, x, 1e-6).dtype == OPS.l2_norm(x, 1e-6).dtype == np.float32


def test_norms():
    x = np.array([[3.0, 4.0]], np.float32)
    weight = np.array([2.0, 10.0], np.float32)
    assert np.allclose(OPS.rms_norm(x, None, 0.0), [[3 / math.sqrt(12.5), 4 / math.sqrt(12.5)]])
    assert np.allclose(OPS.rms_norm(x, weight, 1.0), [[6 / math.sqrt(13.5), 40 / math.sqrt(13.5)]])
    assert np.allclose(OPS.l2_norm(x, 0.0), [[0.6, 0.8]])
    assert np.allclose(OPS.l2_norm(x, 11.0), [[0.5, 4 / 6]])
    assert np.array_equal(OPS.l2_norm(np.zeros((1, 2), np.float32), 1e-6), [[0, 0]])


def test_softmax_and_sum():
    x = np.array([[1000.0, 1000.0 + math.log(3)], [0.0, -np.inf]], np.float32)
    assert np.allclose(OPS.softmax(x), [[0.25, 0.75], [1, 0]], atol=1e-5)
    assert np.array_equal(OPS.sum(np.array([[1.0, 2.0]], np.float32)), [[3.0]])


def test_top_k_is_in_descending_order():
    values, index = OPS.top_k(np.array([[0.1, 0.9, 0.5, 0.7]], np.float32), 3)
    assert index.tolist() == [[1, 3, 2]]
    assert index.dtype == np.int32
    assert np.allclose(values, [[0.9, 0.7, 0.5]])


def test_top_k_mask_keeps_exactly_k_and_the_first_of_equals():
    x = np.array([[0.1, 0.9, 0.0, 0.9, 0.0], [0.0, 0.0, -0.0, 0.0, -1.0]], np.float32)
    gone = -np.inf
    assert np.array_equal(OPS.top_k_mask(x, 3), [[0, 0, gone, 0, gone], [0, 0, 0, gone, gone]])
    assert OPS.top_k_mask(x, 3).dtype == np.float32


def test_sinkhorn_by_hand_and_in_the_limit():
    x = np.log(np.array([[1.0, 3.0], [1.0, 1.0]], np.float32))
    # softmax of rows: 1/4 3/4 | 1/2 1/2; columns sum to 3/4 and 5/4
    once = [[1 / 3, 3 / 5], [2 / 3, 2 / 5]]
    assert np.allclose(OPS.sinkhorn(x, 1, 0.0), once, atol=1e-6)
    rows = np.array(once) / [[14 / 15], [16 / 15]]
    assert np.allclose(OPS.sinkhorn(x, 2, 0.0), rows / rows.sum(0), atol=1e-6)
    many = OPS.sinkhorn(2 * normal(3, 5, 4, 4), 200, 1e-6)
    assert np.allclose(many.sum(-1), 1, atol=1e-4)
    assert np.allclose(many.sum(-2), 1, atol=1e-4)
    # eps is added to the shares once, and to every sum
    assert np.allclose(OPS.sinkhorn(np.zeros((2, 2), np.float32), 1, 0.5), np.full((2, 2), 1 / 2.5), atol=1e-6)


# ------------------------------------------------------------------------------------------------------------- rope


def test_rope_rotates_halves_and_passes_the_rest_through():
    inverse = rope.frequencies(4, 100.0)
    assert np.allclose(inverse, [1.0, 0.1])
    cos, sin = rope.table(np.array([[0, 7]]), inverse)
    x = normal(1, 2, 3, 6)
    got = OPS.rope(x, cos, sin)
    assert np.array_equal(got[:, 0], x[:, 0])  # position 0
    for j, angle in enumerate((7.0, 0.7)):
        a, b = x[0, 1, :, j], x[0, 1, :, j + 2]
        assert np.allclose(got[0, 1, :, j], a * math.cos(angle) - b * math.sin(angle), atol=1e-6)
        assert np.allclose(got[0, 1, :, j + 2], a * math.sin(angle) + b * math.cos(angle), atol=1e-6)
    assert np.array_equal(got[..., 4:], x[..., 4:])


def test_rope_positions_may_differ_by_pair():
    inverse = rope.frequencies(4, 100.0)
    cos, _ = rope.table(np.array([[[5, 9]]]), inverse)
    assert np.allclose(cos, [[[math.cos(5.0), math.cos(0.9)]]])


def test_interleaved_axes_of_the_published_sections():
    axes = rope.interleaved_axes((11, 11, 10, 0), 32)
    assert axes.tolist() == [j % 3 for j in range(32)]
    assert np.bincount(axes).tolist() == [11, 11, 10]
    assert rope.interleaved_axes((3, 3, 2), 8).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("sections", [(11, 11, 9, 0), (10, 11, 11, 0), (0, 0, 0, 0), (8, 12, 12, 0)])
def test_sections_that_leave_a_pair_out_are_refused(sections):
    with pytest.raises(LoadError, match="do not cover 32 rotary pairs"):
        rope.interleaved_axes(sections, 32)


# ------------------------------------------------------------------------------------------------------ over tokens


def attended(q, k, v, scale, seen, sink=None):
    """One query over the keys that it sees, by the definition."""
    scores = np.array([scale * float(q @ k[s]) for s in seen] + ([] if sink is None else [sink]))
    p = np.exp(scores - scores.max())
    return (p / p.sum())[: len(seen)] @ v[seen]


def test_attention_is_causal_and_grouped_and_rows_have_their_own_length():
    q = normal(2, 2, 4, 3)
    k, v = [normal(2, n, 3, seed=n) for n in (5, 2)], [normal(2, n, 6, seed=n + 10) for n in (5, 2)]
    got = OPS.attention(q, k, v, 0.5)
    assert got.shape == (2, 2, 4, 6)
    for b, total in enumerate((5, 2)):
        for t in range(2):
            seen = list(range(total - 2 + t + 1))  # the two queries are the last two positions
            for h in range(4):
                expected = attended(q[b, t, h], k[b][h // 2], v[b][h // 2], 0.5, seen)
                assert np.allclose(got[b, t, h], expected, atol=1e-6)


def test_attention_with_window_sinks_masks_and_both_ways():
    q, k, v = normal(1, 3, 2, 4), [normal(1, 6, 4, seed=1)], [normal(1, 6, 5, seed=2)]
    sinks = np.array([0.3, -2.0], np.float32)
    mask = np.zeros((3, 6), np.float32)
    mask[:, 1] = -np.inf
    for t in range(3):
        at = 3 + t
        for h in range(2):

            def one(seen, sink=None, t=t, h=h):
                return attended(q[0, t, h], k[0][0], v[0][0], 1.0, seen, sink)

            window = OPS.attention(q, k, v, 1.0, window=3)[0, t, h]
            assert np.allclose(window, one([at - 2, at - 1, at]), atol=1e-6)
            sunk = OPS.attention(q, k, v, 1.0, sinks=sinks)[0, t, h]
            assert np.allclose(sunk, one(list(range(at + 1)), sinks[h]), atol=1e-6)
            both = OPS.attention(q, k, v, 1.0, causal=False)[0, t, h]
            assert np.allclose(both, one(list(range(6))), atol=1e-6)
            masked = OPS.attention(q, k, v, 1.0, masks=[mask])[0, t, h]
            assert np.allclose(masked, one([s for s in range(at + 1) if s != 1]), atol=1e-6)


def test_rope_in_pairs():
    inverse = rope.frequencies(4, 100.0)
    cos, sin = rope.table(np.array([[3], [8]]), inverse)
    x = normal(2, 1, 3, 6)
    got = OPS.rope(x, cos, sin, pairs=True)
    for b, position in enumerate((3, 8)):
        for j, angle in enumerate((position * 1.0, position * 0.1)):
            even, odd = x[b, 0, :, 2 * j], x[b, 0, :, 2 * j + 1]
            assert np.allclose(got[b, 0, :, 2 * j], even * math.cos(angle) - odd * math.sin(angle), atol=1e-6)
            assert np.allclose(got[b, 0, :, 2 * j + 1], even * math.sin(angle) + odd * math.cos(angle), atol=1e-6)
    assert np.array_equal(got[..., 4:], x[..., 4:])


@pytest.mark.parametrize("x", [-30.0, -1.5, -0.1, 0.0, 0.7, 3.0, 30.0])
def test_gelu_and_caps(x):
    array = np.array([x], np.float32)
    assert OPS.gelu(array)[0] == pytest.approx(x * 0.5 * (1 + math.erf(x / math.sqrt(2))), rel=1e-5, abs=1e-6)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    assert OPS.gelu_tanh(array)[0] == pytest.approx(0.5 * x * (1 + math.tanh(inner)), rel=1e-5, abs=1e-6)
    assert OPS.softcap(array, 2.0)[0] == pytest.approx(2 * math.tanh(x / 2), rel=1e-6)
    assert OPS.clamp(array, -1.0, None)[0] == max(np.float32(x), -1)
    assert OPS.clamp(array, None, 1.0)[0] == min(np.float32(x), 1)


def test_layer_norm_and_products():
    x = np.array([[1.0, 3.0], [5.0, 5.0]], np.float32)
    got = OPS.layer_norm(x, np.array([2.0, 3.0], np.float32), np.array([0.5, 0.0], np.float32), 0.0 + 1e-12)
    assert np.allclose(got[0], [-2 + 0.5, 3.0], atol=1e-5)
    assert np.allclose(got[1], [0.5, 0.0])
    weight, groups = normal(3, 5, 4), normal(2, 1, 3, 4, seed=1)
    assert np.allclose(OPS.grouped_linear(groups, dense(weight))[1, 0, 2], weight[2] @ groups[1, 0, 2], atol=1e-6)
    assert OPS.take_along(x, np.array([[1], [0]], np.int32)).tolist() == [[3.0], [5.0]]


def test_conv1d_looks_back_through_its_state():
    x, weight = normal(1, 6, 2), normal(2, 4, seed=1)
    whole, (end,) = OPS.conv1d_causal(x, weight, [np.zeros((3, 2), np.float32)])
    padded = np.concatenate([np.zeros((1, 3, 2)), x], axis=1)
    for t in range(6):
        assert np.allclose(whole[0, t], sum(weight[:, i] * padded[0, t + i] for i in range(4)), atol=1e-6)
    assert np.array_equal(end, x[0, 3:])
    states, parts = [np.zeros((3, 2), np.float32)], []
    for a, b in ((0, 1), (1, 2), (2, 6)):
        y, states = OPS.conv1d_causal(x[:, a:b], weight, states)
        parts.append(y)
    assert np.allclose(np.concatenate(parts, axis=1), whole, atol=1e-6)
    assert np.array_equal(states[0], end)


def test_gated_delta_follows_the_rule_and_pairs_heads_in_turn():
    q, k, v = normal(1, 3, 2, 4), normal(1, 3, 2, 4, seed=1), normal(1, 3, 4, 5, seed=2)
    decay, beta = -rng(3).random((1, 3, 4)), rng(4).random((1, 3, 4))
    start = normal(4, 4, 5, seed=5)
    out, (end,) = OPS.gated_delta(q, k, v, decay.astype(np.float32), beta.astype(np.float32), [start.copy()])
    for h in range(4):
        s = start[h].astype(np.float64)
        for t in range(3):
            key, query = k[0, t, h % 2], q[0, t, h % 2]
            s = s * math.exp(decay[0, t, h])
            s = s + np.outer(key, beta[0, t, h] * (v[0, t, h] - s.T @ key))
            assert np.allclose(out[0, t, h], s.T @ query, atol=1e-5)
        assert np.allclose(end[h], s, atol=1e-5)
