"""MLX against the reference, op by op; and what is its own: packing, quantized products, threads."""

import inspect
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.backends import mlx as mlx_backend
from hf2q.backends.ops import Ops
from hf2q.backends.reference import ReferenceOps

pytest.importorskip("mlx.core")

import mlx.core as mx
from mlx_toys import F32, blocks, each, flat, normal, toy

pytestmark = pytest.mark.mlx

REF = ReferenceOps(threads=1)
MLX = mlx_backend.MlxOps(threads=1, exact=True)  # else an NVIDIA GPU rounds the factors of large products to TF32


def on_mlx(op, *arguments):
    """Call an MLX op on numpy arrays, and lists of them; numpy results."""
    return each(MLX.to_numpy, getattr(MLX, op)(*each(MLX.asarray, arguments, np.ndarray)))


def on_mlx_with(op, *arguments, **options):
    """The same with options."""
    return each(
        MLX.to_numpy,
        getattr(MLX, op)(*each(MLX.asarray, arguments, np.ndarray), **each(MLX.asarray, options, np.ndarray)),
    )


def agree(op, *arguments, tolerance=2e-5, **options):
    got, wanted = on_mlx_with(op, *arguments, **options), getattr(REF, op)(*arguments, **options)
    for a, b in zip(flat(got), flat(wanted), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_every_op_of_the_vocabulary_is_implemented():
    for name, op in inspect.getmembers(Ops, inspect.isfunction):
        if not name.startswith("_"):
            own = getattr(type(MLX), name)
            assert own is not op, f"{name} is missing"
            assert inspect.signature(own).parameters.keys() == inspect.signature(op).parameters.keys()


def test_it_is_available_and_preferred_to_the_reference():
    assert mlx_backend.available() is None
    assert mlx_backend.priority() > 0


def test_an_import_that_fails_is_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    assert "MLX cannot be imported" in mlx_backend.available()


# ------------------------------------------------------------------------------------------------------- small ops


@pytest.mark.parametrize("op", ["exp", "sigmoid", "silu", "softplus", "softmax", "sum", "tanh", "gelu", "gelu_tanh"])
def test_ops_of_one_array(op):
    agree(op, normal(2, 3, 7) * 4)


def test_activations_do_not_overflow():
    for op in ("sigmoid", "silu", "softplus"):
        agree(op, np.array([-1000.0, -100.0, 100.0, 1000.0], np.float32))
    agree("softmax", np.array([[1e4, 1e4 - 1, -np.inf]], np.float32))


def test_norms():
    x, weight = normal(2, 3, 8) * 3, normal(8, seed=1)
    agree("rms_norm", x, weight, 1e-6)
    agree("rms_norm", x, None, 1e-3)
    agree("l2_norm", x, 1e-6)
    agree("l2_norm", np.zeros((1, 4), np.float32), 1e-6)
    agree("layer_norm", x + 5, weight, normal(8, seed=2), 1e-12)
    agree("layer_norm", x, None, None, 1e-3)


def test_clamp_softcap_sqrt_geglu():
    x = normal(2, 9) * 5
    agree("clamp", x, -1.0, 2.0)
    agree("clamp", x, None, 2.0)
    agree("clamp", x, -1.0, None)
    agree("softcap", x, 3.0)
    agree("sqrt", np.abs(x))
    agree("geglu", x, normal(2, 9, seed=1))


def test_products_of_activations_and_values_along_an_axis():
    agree("matmul", normal(2, 1, 3, 4), normal(5, 4, 6, seed=1))
    agree("take_along", normal(2, 3, 7), np.array([[[0, 6]] * 3, [[5, 5]] * 3], np.int32))


def test_swiglu_concat_top_k_rope():
    a, b = normal(2, 3, 8), normal(2, 3, 8, seed=1)
    agree("swiglu", a, b)
    joined = MLX.to_numpy(MLX.concat([MLX.asarray(a), MLX.asarray(b)], axis=1))
    assert np.array_equal(joined, np.concatenate([a, b], axis=1))
    agree("top_k", a, 3)
    agree("top_k_mask", a, 3)
    agree("top_k_mask", np.array([[1.0, 0.0, -0.0, 0.0, 0.0, 2.0]], np.float32), 3)
    agree("sinkhorn", normal(2, 3, 4, 4, seed=3), 20, 1e-6)
    agree("sinkhorn", normal(3, 3, seed=4), 1, 0.1)
    angles = normal(2, 3, 2, seed=2)
    for pairs in (False, True):
        agree("rope", normal(2, 3, 4, 10), np.cos(angles), np.sin(angles), pairs=pairs)
        agree("rope", normal(2, 3, 1, 4), np.cos(angles), np.sin(angles), pairs=pairs)


def test_embedding_of_a_dense_table():
    table = normal(9, 4)
    matrix = MLX.matrix(table.view(np.uint8), F32, (9, 4))
    ids = np.array([[0, 8, 3]], np.int32)
    assert np.array_equal(on_mlx("embedding", ids, matrix), table[ids])


OPTIONS = {
    "causal": {},
    "bidirectional": {"causal": False},
    "window": {"window": 3},
    "window of all": {"window": 99},
    "window both ways": {"causal": False, "window": 4},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", [(4, 2, 1, (5,)), (4, 2, 3, (3, 9)), (2, 2, 7, (12, 7, 8))])
def test_attention(shape, options):
    heads, groups, tokens, totals = shape
    q = normal(len(totals), tokens, heads, 8)
    k = [normal(groups, total, 8, seed=total) for total in totals]
    v = [normal(groups, total, 8, seed=total + 50) for total in totals]
    agree("attention", q, k, v, 8**-0.5, **OPTIONS[options])
    agree("attention", q, k, v, 8**-0.5, **OPTIONS[options], sinks=normal(heads, seed=7))
    masks = [np.where(normal(tokens, total, seed=9) > -0.5, 0, -np.inf).astype(np.float32) for total in totals]
    for mask in masks:
        mask[:, -tokens:][np.arange(tokens), np.arange(tokens)] = 0.5  # somebody is seen
    agree("attention", q, k, v, 8**-0.5, **OPTIONS[options], masks=masks)


@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_conv1d(tokens):
    agree("conv1d_causal", normal(2, tokens, 6), normal(6, 4, seed=1), [normal(3, 6, seed=2), normal(3, 6, seed=3)])


def test_write_and_copy():
    buffer = MLX.zeros((2, 5, 3))
    kept = MLX.copy(buffer)
    values = normal(2, 2, 3)
    written = MLX.write(buffer, MLX.asarray(values), 2)
    again = MLX.to_numpy(MLX.write(written, MLX.asarray(values), 0))
    assert np.array_equal(again[:, :4], np.concatenate([values, values]).swapaxes(0, 1))
    assert not MLX.to_numpy(kept).any()


# ------------------------------------------------------------------------------------------------------ gated delta


def delta_inputs(batch, tokens, keys, values, size, seed=0):
    rng = np.random.default_rng(seed)

    def unit(*shape):
        x = rng.standard_normal(shape)
        return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)

    return (
        unit(batch, tokens, keys, size) / np.float32(size**0.5),
        unit(batch, tokens, keys, size),
        rng.standard_normal((batch, tokens, values, size + 2)).astype(np.float32),
        -rng.exponential(0.5, (batch, tokens, values)).astype(np.float32),
        rng.random((batch, tokens, values)).astype(np.float32),
        list(rng.standard_normal((batch, values, size, size + 2)).astype(np.float32)),
    )


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 130])
def test_gated_delta_at_the_edges_of_chunks(tokens):
    agree("gated_delta", *delta_inputs(2, tokens, 2, 4, 8, seed=tokens))


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 150), st.integers(1, 2), st.integers(1, 2), st.integers(0, 99))
def test_gated_delta_of_any_length(tokens, keys, repeats, seed):
    agree("gated_delta", *delta_inputs(1, tokens, keys, keys * repeats, 8, seed=seed))


def test_gated_delta_keeps_its_precision_when_one_key_repeats():
    # without decay and with beta 1 the chunk's matrix is all ones below the diagonal: the hardest to invert
    q, k, v, decay, beta, state = delta_inputs(1, 128, 1, 1, 8)
    k[:] = k[:, :1]
    agree("gated_delta", q, k, v, np.zeros_like(decay), np.ones_like(beta), state)


def test_gated_delta_with_decay_that_forgets_everything():
    q, k, v, decay, beta, state = delta_inputs(1, 70, 1, 2, 8)
    agree("gated_delta", q, k, v, np.full_like(decay, -200.0), beta, state)


# --------------------------------------------------------------------------------------------------------- matrices


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 8])
def test_affine_weights_run_quantized_with_the_very_same_numbers(bits):
    data = blocks(7, 96, seed=bits)
    quantized = MLX.matrix(data, toy(bits), (7, 96))
    decoded = REF.matrix(data, toy(bits), (7, 96))
    assert quantized.quantized
    assert quantized.shape == (7, 96)
    assert quantized.nbytes == 7 * (96 * bits // 8 + 3 * 8)
    ids = np.array([[0, 6, 3]], np.int32)
    rows = on_mlx("embedding", ids, quantized)
    # one rounding, with or without a fused multiply-add
    np.testing.assert_allclose(rows, REF.embedding(ids, decoded), rtol=3e-7, atol=1e-7)
    for x in (normal(1, 1, 96), normal(2, 5, 96)):
        np.testing.assert_allclose(on_mlx("linear", x, quantized), REF.linear(x, decoded), rtol=1e-5, atol=2e-5)


def test_weights_without_an_affine_form_are_decoded():
    data = blocks(5, 64)
    matrix = MLX.matrix(data, toy(4, affine=False), (5, 64))
    assert not matrix.quantized
    assert matrix.nbytes == 5 * 64 * 4
    x = normal(1, 3, 64)
    np.testing.assert_allclose(on_mlx("linear", x, matrix), REF.linear(x, REF.matrix(data, toy(4), (5, 64))), atol=2e-5)


def test_large_weights_are_repacked_in_pieces(monkeypatch):
    from hf2q.backends.mlx import matrix

    whole = MLX.matrix(blocks(9, 64), toy(4), (9, 64))
    plain = MLX.matrix(blocks(9, 64), toy(4, affine=False), (9, 64))
    monkeypatch.setattr(matrix, "PIECE", 128)
    x = normal(2, 1, 64)
    assert np.array_equal(on_mlx("linear", x, MLX.matrix(blocks(9, 64), toy(4), (9, 64))), on_mlx("linear", x, whole))
    assert np.array_equal(
        on_mlx("linear", x, MLX.matrix(blocks(9, 64), toy(4, affine=False), (9, 64))), on_mlx("linear", x, plain)
    )


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_moe(affine, fused):
    shapes = ((4, 128, 32), (4, 32, 64)) if fused else ((4, 64, 32), (4, 64, 32), (4, 32, 64))
    ref, mlx = [], []
    for seed, shape in enumerate(shapes):
        data = blocks(shape[0] * shape[1], shape[2], seed)
        ref.append(REF.matrix(data, toy(4, affine), shape))
        mlx.append(MLX.matrix(data, toy(4, affine), shape))
    x = normal(2, 3, 32)
    experts = np.array([[[0, 1], [2, 3], [3, 0]], [[1, 2], [0, 2], [2, 1]]], np.int32)
    weights = np.random.default_rng(5).random((2, 3, 2)).astype(np.float32)
    wanted = REF.moe(x, experts, weights, ref[:-1], ref[-1], REF.swiglu)
    got = on_mlx("moe", x, experts, weights, mlx[:-1], mlx[-1], MLX.swiglu)
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("affine", [True, False])
def test_several_weights_and_groups(affine):
    data = blocks(3 * 5, 64)
    stack = [ops.matrix(data, toy(4, affine), (3, 5, 64)) for ops in (REF, MLX)]
    x = normal(2, 4, 3, 64)
    np.testing.assert_allclose(
        on_mlx("grouped_linear", x, stack[1]), REF.grouped_linear(x, stack[0]), rtol=2e-5, atol=2e-4
    )
    pair = [[ops.matrix(blocks(n, 64, n), toy(4, affine), (n, 64)) for n in (3, 8)] for ops in (REF, MLX)]
    for got, wanted in zip(on_mlx("linears", x, pair[1]), REF.linears(x, pair[0]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-4)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([2, 3, 4, 5, 6, 8]), st.integers(1, 3), st.integers(1, 4), st.integers(0, 9))
def test_packing_is_what_mlx_unpacks(bits, rows, groups, seed):
    from hf2q.backends.mlx.pack import pack

    codes = np.random.default_rng(seed).integers(0, 1 << bits, (rows, 32 * groups)).astype(np.uint8)
    packed = pack(codes, bits)
    assert packed.dtype == np.uint32
    assert packed.shape == (rows, groups * bits)
    ones = mx.ones((rows, groups))
    unpacked = mx.dequantize(mx.array(packed), ones, mx.zeros((rows, groups)), group_size=32, bits=bits)
    assert np.array_equal(np.array(unpacked), codes)


def test_what_is_loaded_in_one_thread_runs_in_another():
    matrices = [MLX.matrix(blocks(4, 64), toy(4, affine), (4, 64)) for affine in (True, False)]
    results = []

    def work():
        results.extend(on_mlx("linear", normal(1, 1, 64), matrix) for matrix in matrices)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [r.shape for r in results] == [(1, 1, 4)] * 2
