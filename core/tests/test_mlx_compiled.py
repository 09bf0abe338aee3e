"""What MLX traces: the same numbers from fewer operations, in every thread, and no weights kept."""

import gc
import shutil
import threading
import weakref

import numpy as np
import pytest

from hf2q.backends import mlx as mlx_backend
from hf2q.backends.ops import DeltaWeights
from hf2q.backends.reference import ReferenceOps

pytest.importorskip("mlx.core")

import mlx.core as mx
from mlx_toys import blocks, each, flat, normal, toy

pytestmark = pytest.mark.mlx

REF = ReferenceOps(threads=1)
MLX = mlx_backend.MlxOps(threads=1)


@pytest.fixture
def compiling():
    """Ops that compile, as on a GPU."""
    if mx.default_device().type != mx.gpu and not shutil.which("g++"):
        pytest.skip("without a GPU, MLX compiles what it traced with g++, which is not installed")
    return compiling_ops()


def compiling_ops(active=True):
    ops = mlx_backend.MlxOps(threads=1)
    ops._compiled.active = active
    return ops


PLAIN = compiling_ops(active=False)
"""Ops that do not compile, on a GPU either."""


def primitives(path, *results):
    """What MLX would run for these, by name."""
    mx.export_to_dot(str(path), *flat(results))
    return [
        line.split('label ="')[1].split('"')[0] for line in path.read_text().split("\n") if "shape=rectangle" in line
    ]


def delta_layer(ops, x, seed=0):
    """A layer with quantized matrices on x (B, T, 64): its arguments."""
    groups, heads, d_k, d_v = 2, 4, 16, 8
    channels = 2 * groups * d_k + heads * d_v

    def matrix(rows, columns, seed):
        return ops.matrix(blocks(rows, columns, seed), toy(4), (rows, columns))

    rng = np.random.default_rng(seed)
    states = [(normal(3, channels, seed=seed + i), normal(heads, d_k, d_v, seed=seed + i)) for i in range(len(x))]
    weights = DeltaWeights(
        norm=ops.asarray(normal(64)),
        mixed=matrix(channels, 64, seed),
        gate=matrix(heads * d_v, 64, seed + 1),
        beta=matrix(heads, 64, seed + 2),
        alpha=matrix(heads, 64, seed + 3),
        conv=ops.asarray(normal(channels, 4, seed=seed)),
        a=ops.asarray(-rng.exponential(1, heads).astype(np.float32)),
        dt=ops.asarray(normal(heads, seed=seed)),
        head_norm=ops.asarray(normal(d_v, seed=seed)),
        out=matrix(64, heads * d_v, seed + 4),
        eps=1e-6,
        l2_eps=1e-6,
    )
    return ops.asarray(x), weights, [(ops.asarray(conv), ops.asarray(state)) for conv, state in states]


def ffn(ops, x, seed=0):
    """A feed-forward layer on x (B, T, 64): its arguments."""
    shapes = ((32, 64), (32, 64), (64, 32))
    matrices = [ops.matrix(blocks(*shape, seed + i), toy(4), shape) for i, shape in enumerate(shapes)]
    return ops.asarray(x), ops.asarray(normal(64)), 1e-6, *matrices


@pytest.mark.parametrize("tokens", [1, 2, 8, 9])
@pytest.mark.parametrize("batch", [1, 2])
def test_delta_layers_are_those_of_the_reference(batch, tokens):
    x = normal(batch, tokens, 64)
    for got, wanted in zip(
        flat(each(MLX.to_numpy, MLX.delta_layer(*delta_layer(MLX, x)))),
        flat(REF.delta_layer(*delta_layer(REF, x))),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (1, 3), (2, 1), (3, 4)])
def test_compiled_layers_are_the_plain_ones(compiling, batch, tokens):
    x = normal(batch, tokens, 64)
    for name, arguments in (("delta_layer", delta_layer), ("gated_ffn", ffn)):
        for seed in (0, 5):  # other weights with the same trace
            plain = each(MLX.to_numpy, getattr(PLAIN, name)(*arguments(PLAIN, x, seed)))
            got = each(MLX.to_numpy, getattr(compiling, name)(*arguments(compiling, x, seed)))
            for a, b in zip(flat(got), flat(plain), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_compiled_layers_start_fewer_operations_and_prefills_are_not_traced(compiling, tmp_path):
    def count(ops, name, arguments, tokens):
        found = primitives(tmp_path / "graph", getattr(ops, name)(*arguments(ops, normal(1, tokens, 64))))
        return len(found), any(name.startswith("Compiled") for name in found)

    for name, arguments in (("delta_layer", delta_layer), ("gated_ffn", ffn)):
        (fewer, fused), (more, plain) = (count(ops, name, arguments, 1) for ops in (compiling, PLAIN))
        assert fused
        assert not plain
        assert fewer < more
        assert not count(compiling, name, arguments, 33)[1]
    assert not count(compiling, "delta_layer", delta_layer, 9)[1]


@pytest.mark.parametrize(("batch", "tokens"), [(3, 1), (3, 2)])
def test_a_compiled_row_does_not_depend_on_others(compiling, batch, tokens):
    x, weights, states = delta_layer(compiling, normal(batch, tokens, 64))
    out, after = compiling.delta_layer(x, weights, states)
    for row in range(batch):
        alone, own = compiling.delta_layer(x[row : row + 1], weights, states[row : row + 1])
        for a, b in zip(flat([alone[0], own[0]]), flat([out[row], after[row]]), strict=True):
            np.testing.assert_allclose(MLX.to_numpy(a), MLX.to_numpy(b), rtol=1e-5, atol=1e-5)


def test_other_compiled_ops_are_the_plain_ones(compiling):
    x, up = normal(2, 3, 8) * 3, normal(2, 3, 8, seed=1)
    angles = normal(2, 3, 2, seed=2)
    calls = [("silu", x), ("gelu", x), ("gelu_tanh", x), ("geglu", x, up), ("swiglu", x, up), ("softcap", x, 3.0)]
    calls += [("softcap", x, 5.0), ("silu", normal(7)), ("swiglu", normal(1, 40, 8), normal(1, 40, 8, seed=1))]
    calls += [("gated_rms_norm", x, normal(8, seed=3), 1e-6, up), ("sinkhorn", normal(2, 3, 4, 4), 3, 1e-6)]
    calls += [("rope", normal(2, 3, 4, size), np.cos(angles), np.sin(angles)) for size in (4, 10)]
    for name, *arguments in calls:
        got = getattr(compiling, name)(*each(MLX.asarray, arguments, np.ndarray))
        wanted = getattr(PLAIN, name)(*each(MLX.asarray, arguments, np.ndarray))
        np.testing.assert_allclose(MLX.to_numpy(got), MLX.to_numpy(wanted), rtol=1e-6, atol=1e-6)


def test_compiled_functions_belong_to_their_model_and_thread(compiling):
    x = normal(1, 1, 64)
    models = [compiling, compiling_ops()]
    wanted = MLX.to_numpy(PLAIN.delta_layer(*delta_layer(PLAIN, x))[0])
    results = []

    def work():
        results.extend(ops.to_numpy(ops.delta_layer(*delta_layer(ops, x))[0]) for ops in (*models, compiling))

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    other = weakref.ref(models.pop())
    gc.collect()
    assert other() is None
    work()  # still there, with one model and one thread gone
    assert len(results) == 8
    for result in results:
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


def test_traces_keep_no_weights(compiling):
    def run(seed):
        shape = (1024, 1024)
        matrices = [compiling.matrix(blocks(*shape, seed + i), toy(8), shape) for i in range(3)]
        out = compiling.gated_ffn(
            compiling.asarray(normal(1, 1, 1024)), compiling.asarray(normal(1024)), 1e-6, *matrices
        )
        compiling.eval(out)
        return sum(matrix.nbytes for matrix in matrices)

    run(0)  # whatever MLX keeps for itself, once
    gc.collect()
    before = mx.get_active_memory()
    size = run(3)
    gc.collect()
    assert size > 3 << 20
    assert mx.get_active_memory() - before < 1 << 16
