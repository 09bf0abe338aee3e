"""Products with F32, F16 and BF16 matrices of any shape, rows of them, stacks of experts, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.backends.cpu.linear import Linear
from hf2q.backends.cpu.matrix import Matrix
from hf2q.backends.cpu.team import Team
from hf2q.errors import LoadError
from hf2q.plugins import Plugins


@pytest.fixture(scope="module")
def codecs():
    plugins = Plugins.load()
    return {name: plugins.codec(name) for name in ("F32", "F16", "BF16", "I32")}


@pytest.fixture(scope="module")
def team():
    with Team(2) as team:
        yield team


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(y, x, w):
    """Within rounding of float32 sums."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    return (np.abs(y - x @ w.T) <= 1e-6 * (np.abs(x) @ np.abs(w).T)).all()


@settings(max_examples=40, deadline=None)
@given(
    qtype=st.sampled_from(["F32", "F16", "BF16"]),
    rows=st.integers(1, 70),
    columns=st.integers(1, 700),
    count=st.integers(0, 20),
    seed=st.integers(0, 99),
)
def test_products_of_any_shape(codecs, team, qtype, rows, columns, count, seed):
    codec = codecs[qtype]
    blocks = codec.encode(normal(seed, rows, columns))
    w, x = codec.decode(blocks), normal(seed + 1, count, columns)
    matrix = Matrix.load(team, codec, blocks, (rows, columns))
    linear = Linear(team)
    (y,) = linear.matmul(x, matrix)
    assert y.shape == (count, rows)
    assert close(y, x, w)
    for k in range(count):  # no row depends on its neighbours
        assert (linear.matmul(x[k : k + 1], matrix)[0] == y[k]).all()
    ids = np.random.default_rng(seed).integers(0, rows, 5)
    assert (linear.rows(ids, matrix) == w[ids]).all()


@pytest.mark.parametrize("qtype", ["F32", "F16"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_matrices_are_cut_without_loss(codecs, qtype, threads):
    """Members stream through half of their shares, then through half of what is left."""
    blocks = codecs[qtype].encode(normal(1, 5003, 72))
    w, x = codecs[qtype].decode(blocks), normal(2, 9, 72)
    other, more = codecs["F32"].encode(normal(3, 700, 72)), normal(3, 700, 72)
    with Team(threads) as team:
        linear, matrix = Linear(team), Matrix.load(team, codecs[qtype], blocks, w.shape)
        second = Matrix.load(team, codecs["F32"], other, more.shape)
        for count in (1, 3, 8, 9):
            y, z = linear.matmul(x[:count], matrix, second)
            assert close(y, x[:count], w)
            assert close(z, x[:count], more)
            assert (linear.matmul(x[:1], matrix)[0] == y[:1]).all()


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_threads_change_nothing(codecs, team, threads):
    blocks, x = codecs["F16"].encode(normal(1, 100, 300)), normal(2, 9, 300)
    (y,) = Linear(team).matmul(x, Matrix.load(team, codecs["F16"], blocks, (100, 300)))
    with Team(threads) as other:
        (z,) = Linear(other).matmul(x, Matrix.load(other, codecs["F16"], blocks, (100, 300)))
    assert (y == z).all()


def test_several_matrices_share_activations(codecs, team):
    shapes = [(40, 64), (7, 64), (16, 64)]
    weights = [normal(k, *shape) for k, shape in enumerate(shapes)]
    matrices = [Matrix.load(team, codecs["F32"], codecs["F32"].encode(w), w.shape) for w in weights]
    x = normal(9, 5, 64)
    linear = Linear(team)
    for _ in range(2):
        for y, w in zip(linear.matmul(x, *matrices), weights, strict=True):
            assert y.flags.c_contiguous
            assert close(y, x, w)


@pytest.mark.parametrize("count", [1, 3, 50])
def test_selected_experts(codecs, team, count):
    w = normal(0, 6, 24, 64)
    blocks = codecs["F16"].encode(w.reshape(-1, 64))
    w = codecs["F16"].decode(blocks).reshape(w.shape)
    stack = Matrix.load(team, codecs["F16"], blocks, w.shape)
    experts = np.random.default_rng(count).integers(0, 6, (count, 2))
    x, each = normal(1, count, 64), normal(2, count, 2, 64)
    linear = Linear(team)
    (y,) = linear.selected(x, experts, stack)
    (z,) = linear.selected(each, experts, stack)
    for t in range(count):
        for k in range(2):
            assert close(y[t, k], x[t], w[experts[t, k]])
            assert close(z[t, k], each[t, k], w[experts[t, k]])


def test_what_is_refused(codecs, team):
    blocks = codecs["F32"].encode(normal(0, 8, 32))
    matrix = Matrix.load(team, codecs["F32"], blocks, (8, 32))
    linear = Linear(team)
    with pytest.raises(LoadError, match="no kernels for I32"):
        Matrix.load(team, codecs["I32"], blocks, (8, 32))
    with pytest.raises(LoadError, match=r"takes 9 rows of 128 bytes, found uint8 \(8, 128\)"):
        Matrix.load(team, codecs["F32"], blocks, (9, 32))
    with pytest.raises(ValueError, match="does not fit"):
        linear.matmul(normal(0, 1, 33), matrix)
    with pytest.raises(IndexError, match="rows from -1"):
        linear.rows(np.array([-1]), matrix)
    with pytest.raises(IndexError, match="expert numbers from 0 to 1"):
        linear.selected(normal(0, 1, 32), np.array([[0, 1]]), matrix)


def test_nan_and_infinity_show(codecs, team):
    matrix = Matrix.load(team, codecs["F32"], codecs["F32"].encode(normal(0, 8, 32)), (8, 32))
    x = normal(1, 2, 32)
    x[0, 3] = np.nan
    (y,) = Linear(team).matmul(x, matrix)
    assert np.isnan(y[0]).all()
    assert np.isfinite(y[1]).all()
