"""Weights that are left in the file for the first product: the same results, the same errors, and then repacked."""

import numpy as np
import pytest

pytest.importorskip("numba")

from hf2q.backends.cpu import job
from hf2q.backends.cpu.linear import Linear
from hf2q.backends.cpu.matrix import Matrix
from hf2q.backends.cpu.ops import CpuOps
from hf2q.backends.cpu.team import Team
from hf2q.backends.weights import ArraySource, Weights
from hf2q.errors import LoadError
from hf2q.plugins import Plugins


@pytest.fixture(scope="module")
def codecs():
    return Plugins.load()


@pytest.fixture(params=[1, 3])
def team(request):
    with Team(request.param) as team:
        yield team


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def left(linear, codec, blocks, shape, **more):
    matrix = Matrix.load(linear.team, codec, blocks, shape, later=True, **more)
    linear.in_file.append(matrix)
    return matrix


@pytest.mark.parametrize("qtype", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("exact", [False, True])
def test_results_are_the_same_bit_for_bit(codecs, team, qtype, exact):
    codec = codecs.codec(qtype)
    shapes = (50, 512), (16, 512), (7, 512)
    stored = [codec.encode(normal(k, *shape)) for k, shape in enumerate(shapes)]
    for rows in (1, 2, 5, 8, 20):
        linear, x = Linear(team, exact=exact), normal(rows, rows, 512)
        pairs = list(zip(stored, shapes, strict=True))
        wanted = linear.matmul(x, *(Matrix.load(team, codec, blocks, shape) for blocks, shape in pairs))
        matrices = [left(linear, codec, blocks, shape) for blocks, shape in pairs]
        found = linear.matmul(x, *matrices)
        assert all(matrix.in_file is not None for matrix in matrices)
        for a, b in zip(found, wanted, strict=True):
            assert (a == b).all()
        ids = np.array([6, 0, 6])
        assert (linear.rows(ids, matrices[2]) == codec.decode(stored[2])[ids]).all()
        again = linear.matmul(x, *matrices)  # the second product repacks them
        assert all(matrix.in_file is None for matrix in matrices)
        assert not linear.in_file
        for a, b in zip(again, wanted, strict=True):
            assert (a == b).all()
        assert (linear.rows(ids, matrices[2]) == codec.decode(stored[2])[ids]).all()


def test_many_rows_repack_at_once(codecs, team):
    codec, linear = codecs.codec("F32"), Linear(team, exact=True)
    w, x = normal(0, 33, 64), normal(1, job.MOST_ROWS + 1, 64)
    matrix = left(linear, codec, codec.encode(w), w.shape)
    (y,) = linear.matmul(x, matrix)
    assert matrix.in_file is None
    assert np.allclose(y, x @ w.T, atol=1e-4)


def test_stacks_of_experts_are_never_left(codecs, team):
    codec = codecs.codec("F32")
    w = normal(0, 3, 16, 32)
    assert Matrix.load(team, codec, codec.encode(w.reshape(48, 32)), w.shape, later=True).in_file is None


def test_what_is_not_finite_is_found_by_the_first_product_and_by_looking_rows_up(codecs):
    values = normal(2, 200, 64)
    values[150, 7] = np.nan
    told = r"tensor 'blk.0.x' \(F32\) holds nan in row 150, column 7"
    x = normal(3, 2, 64)

    def ready():
        ops = CpuOps(threads=2)
        weights = Weights(ArraySource({"good": normal(4, 64, 64), "blk.0.x": values}), codecs.codec, ops, later=True)
        good, bad = weights.matrix("good"), weights.matrix("blk.0.x")
        weights.finish()
        return ops, good, bad

    ops, good, bad = ready()
    ops.linear(x, good)
    with pytest.raises(LoadError, match=told):
        ops.linear(x, bad)
    ops, good, bad = ready()
    assert (ops.embedding(np.array([[3, 149]]), bad) == values[[3, 149]]).all()
    with pytest.raises(LoadError, match=told):
        ops.embedding(np.array([[3, 150]]), bad)
    ops, good, bad = ready()
    ops.linear(x, good)
    for _ in range(2):
        with pytest.raises(LoadError, match=told):  # repacked with the others, though no product was asked of it
            ops.linear(x, good)
    ops, good, bad = ready()
    with pytest.raises(LoadError, match=told):
        ops.gated_ffn(x, np.ones(64, np.float32), 1e-6, good, bad, good)


def test_layers_of_one_start_find_weights_wherever_they_are(codecs):
    weights = {name: normal(k, 96, 96) / 10 for k, name in enumerate(("gate", "up", "down"))}
    norm, x = np.ones(96, np.float32), normal(9, 3, 96)
    results, shared = [], []
    for later in (False, True):
        ops = CpuOps(threads=2)
        source = Weights(ArraySource(weights), codecs.codec, ops, later=later)
        loaded = [source.matrix(name) for name in weights]
        source.finish()
        results.append(ops.gated_ffn(x, norm, 1e-6, *loaded))
        # also when the first product needs more room for its activations than there was
        assert all((matrix.in_file is not None) == later for matrix in loaded)
        results += [ops.gated_ffn(x, norm, 1e-6, *loaded) for _ in range(2)]
        assert all(matrix.in_file is None for matrix in loaded)
        source = Weights(ArraySource(weights), codecs.codec, ops, later=later)
        gate, up = source.matrix("gate"), source.matrix("up")
        shared += [
            ops.gated_ffn(x, norm, 1e-6, gate, up, gate) for _ in range(2)
        ]  # the second product in the same start
    assert all((result == results[0]).all() for result in results)
    assert all((result == shared[0]).all() for result in shared)
