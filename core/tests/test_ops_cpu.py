"""The cpu backend against the reference, op by op; products with weights have their own tests."""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from cpu_toys import matrix, normal

from hf2q.backends.cpu.ops import CpuOps
from hf2q.backends.ops import Ops
from hf2q.backends.reference import ReferenceOps

REF = ReferenceOps(threads=1)


@pytest.fixture(scope="module", params=[1, 3])
def cpu(request):
    ops = CpuOps(threads=request.param)
    yield ops
    ops.team.close()


def flat(x):
    return [array for part in x for array in flat(part)] if isinstance(x, tuple | list) else [x]


def own(x):
    """A copy, for ops that take their arguments over."""
    return [own(part) for part in x] if isinstance(x, list) else x.copy() if isinstance(x, np.ndarray) else x


def agree(cpu, op, *arguments, tolerance=2e-5, **options):
    got = getattr(cpu, op)(*map(own, arguments), **options)
    wanted = getattr(REF, op)(*map(own, arguments), **options)
    for a, b in zip(flat(got), flat(wanted), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_every_op_of_the_vocabulary_is_there_with_its_parameters():
    for name, op in inspect.getmembers(Ops, inspect.isfunction):
        if not name.startswith("_"):
            parameters = inspect.signature(getattr(CpuOps, name)).parameters
            assert parameters.keys() == inspect.signature(op).parameters.keys(), name


@pytest.mark.parametrize("op", ["exp", "sigmoid", "silu", "gelu", "gelu_tanh", "softplus", "softmax", "tanh"])
@pytest.mark.parametrize("shape", [(1,), (2, 3, 7), (5, 16), (3, 12345)])
def test_functions_of_one_array(cpu, op, shape):
    agree(cpu, op, normal(*shape) * 4, tolerance=3e-6 if op != "exp" else 1e-5)


def test_functions_at_their_ends(cpu):
    ends = np.array([-np.inf, -1e30, -1000, -100, -88, -87, -0.0, 0, 87, 1000, 1e30], np.float32)
    for op in ("sigmoid", "silu", "gelu", "gelu_tanh"):
        with np.errstate(invalid="ignore", over="ignore"):
            agree(cpu, op, ends[1:])
    assert cpu.exp(ends[:3]).tolist() == [0, 0, 0]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 70), st.integers(0, 99))
def test_norms_of_any_width(rows, columns, seed):
    cpu = CpuOps(threads=2)
    x, weight, bias = normal(rows, 2, columns, seed=seed) * 3, normal(columns, seed=1), normal(columns, seed=2)
    agree(cpu, "rms_norm", x, weight, 1e-6)
    agree(cpu, "rms_norm", x, None, 1e-3)
    agree(cpu, "l2_norm", x, 1e-6)
    agree(cpu, "layer_norm", x + 5, weight, bias, 1e-12, tolerance=1e-4 if columns > 1 else 10)
    agree(cpu, "layer_norm", x, None, None, 1e-3)
    cpu.team.close()


def test_gates_take_slices(cpu):
    both = normal(3, 5, 40)
    agree(cpu, "swiglu", both[..., :20], both[..., 20:])
    agree(cpu, "geglu", both[..., :20], both[..., 20:])


@pytest.mark.parametrize("turned", [1, 5, 16, 24])
def test_rope(cpu, turned):
    angles = normal(2, 3, turned, seed=2)
    for pairs in (False, True):
        agree(cpu, "rope", normal(2, 3, 4, 50), np.cos(angles), np.sin(angles), pairs=pairs)


OPTIONS = {
    "causal": {},
    "bidirectional": {"causal": False},
    "window": {"window": 3},
    "wide window": {"window": 21},
    "window both ways": {"causal": False, "window": 40},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "shape",
    [
        (4, 2, 1, (5,), 16),
        (4, 1, 3, (3, 49), 32),
        (2, 2, 7, (12, 7, 80), 64),
        (8, 1, 70, (70, 99), 16),
        (1, 1, 33, (33,), 512),
    ],
)
def test_attention(cpu, shape, options):
    heads, groups, tokens, totals, size = shape
    q = normal(len(totals), tokens, heads, size)
    k = [normal(groups, total, size, seed=total) for total in totals]
    v = [normal(groups, total, 16, seed=total + 50) for total in totals]
    agree(cpu, "attention", q, k, v, size**-0.5, **OPTIONS[options])
    agree(cpu, "attention", q, k, v, size**-0.5, **OPTIONS[options], sinks=normal(heads, seed=7))
    masks = [np.where(normal(tokens, total, seed=9) > -0.5, 0, -np.inf).astype(np.float32) for total in totals]
    for mask in masks:
        mask[:, -tokens:][np.arange(tokens), np.arange(tokens)] = 0.5  # somebody is seen
    agree(cpu, "attention", q, k, v, size**-0.5, **OPTIONS[options], masks=masks)


def test_attention_reads_from_buffers_with_room_to_spare(cpu):
    buffer = normal(2, 64, 16, seed=3)
    q = normal(1, 2, 4, 16)
    agree(cpu, "attention", q, [buffer[:, :9]], [buffer[:, :9]], 0.25)


def test_attention_with_heads_that_do_not_fit_registers(cpu):
    agree(cpu, "attention", normal(1, 2, 2, 7), [normal(1, 5, 7)], [normal(1, 5, 9)], 0.3)


def test_a_row_of_a_batch_gets_the_very_numbers_it_gets_alone(cpu):
    q, k = normal(3, 5, 4, 32), [normal(2, n, 32, seed=n) for n in (5, 40, 17)]
    together = cpu.attention(q, k, k, 0.2)
    for row in range(3):
        assert np.array_equal(cpu.attention(q[row : row + 1], [k[row]], [k[row]], 0.2)[0], together[row])


@pytest.mark.parametrize("tokens", [1, 2, 9])
@pytest.mark.parametrize("channels", [6, 64, 200])
def test_conv1d(cpu, tokens, channels):
    states = [normal(3, channels, seed=2), normal(3, channels, seed=3)]
    agree(cpu, "conv1d_causal", normal(2, tokens, channels), normal(channels, 4, seed=1), states)


def delta_inputs(batch, tokens, keys, values, size, width, seed=0):
    rng = np.random.default_rng(seed)

    def unit(*shape):
        x = rng.standard_normal(shape)
        return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)

    return (
        unit(batch, tokens, keys, size) / np.float32(size**0.5),
        unit(batch, tokens, keys, size),
        rng.standard_normal((batch, tokens, values, width)).astype(np.float32),
        -rng.exponential(0.5, (batch, tokens, values)).astype(np.float32),
        rng.random((batch, tokens, values)).astype(np.float32),
        list(rng.standard_normal((batch, values, size, width)).astype(np.float32)),
    )


@pytest.mark.parametrize("tokens", [1, 2, 65])
@pytest.mark.parametrize("sizes", [(2, 4, 8, 32), (1, 1, 16, 64), (2, 2, 7, 10)])
def test_gated_delta(cpu, tokens, sizes):
    agree(cpu, "gated_delta", *delta_inputs(2, tokens, *sizes, seed=tokens))


def test_states_are_taken_over_and_copies_stay(cpu):
    inputs = delta_inputs(1, 3, 1, 1, 8, 32)
    kept = [cpu.copy(state) for state in inputs[-1]]
    cpu.gated_delta(*inputs[:-1], inputs[-1])
    assert np.array_equal(kept[0], delta_inputs(1, 3, 1, 1, 8, 32)[-1][0])


@pytest.mark.parametrize("fused", [True, False])
def test_moe_groups_and_embeddings(cpu, fused):
    gate, up, down = normal(4, 48, 32), normal(4, 48, 32, seed=1), normal(4, 32, 48, seed=2)
    x = normal(2, 3, 32)
    experts = np.array([[[0, 1], [2, 3], [3, 0]], [[1, 2], [0, 2], [2, 1]]], np.int32)
    weights = np.random.default_rng(5).random((2, 3, 2)).astype(np.float32)
    parts = (np.concatenate([gate, up], axis=1),) if fused else (gate, up)
    got = cpu.moe(x, experts, weights, [matrix(cpu, p) for p in parts], matrix(cpu, down), cpu.swiglu)
    wanted = REF.moe(x, experts, weights, [matrix(REF, p) for p in parts], matrix(REF, down), REF.swiglu)
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-4)
    grouped = normal(2, 4, 4, 32)
    np.testing.assert_allclose(
        cpu.grouped_linear(grouped, matrix(cpu, gate)), REF.grouped_linear(grouped, matrix(REF, gate)), atol=1e-4
    )
    table = normal(9, 32)
    ids = np.array([[0, 8, 3]], np.int32)
    assert np.array_equal(cpu.embedding(ids, matrix(cpu, table)), table[ids])
    for a, b in zip(
        cpu.linears(x, [matrix(cpu, table), matrix(cpu, gate[0])]),
        REF.linears(x, [matrix(REF, table), matrix(REF, gate[0])]),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=2e-5)
