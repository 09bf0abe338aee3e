"""The cpu backend against every block codec: exact products, int8 products within their bound, on every way.

Blocks are random bytes, so codes and scales take all values, also those that no encoder writes.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from hf2q.backends.cpu.isa import isa, multiplies_tiles
from hf2q.backends.cpu.linear import TILED_FROM, Linear
from hf2q.backends.cpu.matrix import QTYPES, Matrix
from hf2q.backends.cpu.team import Team
from hf2q.plugins import Plugins
from hf2q.simd.host import host

BLOCK_TYPES = [qtype for qtype in QTYPES if qtype not in ("F32", "F16", "BF16")]
SOME = ["Q4_K", "Q6_K", "Q8_0"]
"""One of each kind of kernel: minimums, sub-blocks of 16, signed bytes."""


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


@pytest.fixture(scope="module")
def team():
    with Team(2) as team:
        yield team


def random_blocks(codec, rows, blocks, seed):
    """Random blocks whose weights are finite and within float16, and the weights."""
    random = np.random.default_rng(seed)
    if codec.block_size == 1:
        data = codec.encode(random.standard_normal((rows, blocks)).astype(np.float32))
        return data, codec.decode(data)
    data = random.integers(0, 256, (rows, blocks * codec.type_size), np.uint8)
    while True:
        with np.errstate(all="ignore"):
            weights = codec.decode(data)
            bad = ~(np.abs(weights) < 65504).all(axis=1)
        if not bad.any():
            return data, weights
        data[bad] = random.integers(0, 256, (bad.sum(), data.shape[1]), np.uint8)


def assert_exact(y, x, w):
    x, w = x.astype(np.float64), w.astype(np.float64)
    assert (np.abs(y - x @ w.T) <= 1e-6 * (np.abs(x) @ np.abs(w).T)).all()


def assert_int8(y, x, w):
    """An activation is off by half a step at most, and a step is 1/127 of the largest of its 32."""
    step = np.abs(x.reshape(len(x), -1, 32)).max(axis=2).repeat(32, axis=1).astype(np.float64) / 127
    x, w = x.astype(np.float64), w.astype(np.float64)
    bound = (0.501 * step) @ np.abs(w).T + 1e-5 * (np.abs(x) @ np.abs(w).T)
    assert (np.abs(y - x @ w.T) <= bound).all()


def assert_bfloat16(y, x, w):
    """Both factors are off by 2^-9 of themselves at most; float32 sums on top. AMX takes subnormal numbers for zero."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    subnormal = np.finfo(np.float32).tiny * (np.abs(x).sum(axis=1, keepdims=True) + 1)
    assert (np.abs(y - x @ w.T) <= 2**-7.9 * (np.abs(x) @ np.abs(w).T) + subnormal).all()


@pytest.mark.parametrize("qtype", BLOCK_TYPES)
def test_rows_are_what_the_codec_decodes(plugins, team, qtype):
    codec = plugins.codec(qtype)
    blocks, weights = random_blocks(codec, 37, 3, 1)
    matrix = Matrix.load(team, codec, blocks, weights.shape)
    assert matrix.nbytes == 48 * blocks.shape[1]  # as in the file, rows rounded up to sixteen
    order = np.random.default_rng(0).permutation(37)
    assert (Linear(team).rows(order, matrix) == weights[order]).all()


@pytest.mark.parametrize("qtype", BLOCK_TYPES)
def test_one_row_in_int8(plugins, team, qtype):
    codec = plugins.codec(qtype)
    blocks, weights = random_blocks(codec, 21, 5, 2)
    x = np.random.default_rng(3).standard_normal((1, weights.shape[1])).astype(np.float32)
    (y,) = Linear(team).matmul(x, Matrix.load(team, codec, blocks, weights.shape))
    assert_int8(y, x, weights)


def many(plugins, team, qtype, *, exact):
    codec = plugins.codec(qtype)
    for rows, blocks, seed in ((50, 288 // codec.block_size or 2, 4), (16, 1, 5)):
        data, weights = random_blocks(codec, rows, blocks, seed)
        matrix = Matrix.load(team, codec, data, weights.shape)
        linear = Linear(team, exact=exact)
        for n in (2, 8, 13, 31, 33, 140):
            x = np.random.default_rng(n).standard_normal((n, weights.shape[1])).astype(np.float32)
            (y,) = linear.matmul(x, matrix)
            if multiplies_tiles() and n >= TILED_FROM and not exact:
                assert_bfloat16(y, x, weights)
                continue
            (assert_exact if exact else assert_int8)(y, x, weights)
            for k in (0, n // 2, n - 1):  # the same bit for bit alone
                assert (linear.matmul(x[k : k + 1], matrix)[0] == y[k]).all()


@pytest.mark.parametrize("qtype", SOME)
@pytest.mark.parametrize("exact", [True, False])
def test_many_rows(plugins, team, qtype, exact):
    many(plugins, team, qtype, exact=exact)


@pytest.mark.slow
@pytest.mark.parametrize("qtype", [qtype for qtype in BLOCK_TYPES if qtype not in SOME])
def test_many_rows_of_the_others(plugins, team, qtype):
    many(plugins, team, qtype, exact=True)
    many(plugins, team, qtype, exact=False)


LARGEST = [*SOME, "Q5_K"]
"""Codes of five bits without an offset have a path of their own in `integer_slab`."""


@pytest.mark.parametrize("qtype", LARGEST)
def test_the_largest_sums(plugins, team, qtype):
    largest(plugins, team, qtype)


@pytest.mark.slow
@pytest.mark.parametrize("qtype", [qtype for qtype in BLOCK_TYPES if qtype not in LARGEST])
def test_the_largest_sums_of_the_others(plugins, team, qtype):
    largest(plugins, team, qtype)


def largest(plugins, team, qtype):
    """Weights and activations as large as they get, with the signs of some rows: partial sums of few bits must hold."""
    codec, rng = plugins.codec(qtype), np.random.default_rng(8)
    signs = rng.choice([-1, 1], (24, 512)).astype(np.float32)
    signs[0], signs[1], signs[2] = 1, -1, np.where(np.arange(512) % 4 < 2, 1, -1)
    data = codec.encode(signs, importance=np.ones(512, np.float32) if codec.needs_importance else None)
    weights = codec.decode(data)
    matrix = Matrix.load(team, codec, data, weights.shape)
    x = np.concatenate([signs[:12], -signs[:4]])
    for n in (4, 8, 16):
        (y,) = Linear(team).matmul(x[:n], matrix)
        assert_int8(y, x[:n], weights)
        assert (Linear(team).matmul(x[n - 1 : n], matrix)[0] == y[n - 1]).all()


def test_experts_and_mixed_types(plugins, team):
    linear = Linear(team)
    experts = np.array([[0, 2], [2, 3], [2, 1], [2, 0]])
    codec = plugins.codec("Q4_K")
    blocks, weights = random_blocks(codec, 4 * 24, 1, 6)
    stack = Matrix.load(team, codec, blocks, (4, 24, 256))
    x = np.random.default_rng(7).standard_normal((4, 256)).astype(np.float32)
    (y,) = linear.selected(x, experts, stack)
    for t in range(4):
        for k in range(2):
            part = weights.reshape(4, 24, 256)[experts[t, k]]
            assert_int8(y[t, k][None], x[t : t + 1], part)
    others = [("Q8_0", 8), ("F16", 256), ("Q6_K", 1)]
    pairs = [random_blocks(plugins.codec(q), 20, n, 8) for q, n in others]
    matrices = [
        Matrix.load(team, plugins.codec(q), data, w.shape) for (q, _), (data, w) in zip(others, pairs, strict=True)
    ]
    for result, (_, w) in zip(linear.matmul(x, *matrices), pairs, strict=True):
        assert_int8(result, x, w)


@pytest.mark.parametrize("count", [32, 40, 530])
@pytest.mark.parametrize("qtype", ["F16", "BF16"])
def test_many_rows_of_floats_in_tiles(plugins, team, qtype, count):
    """Split in two, numbers lose no more than the last bits of sixteen; beside a matrix of blocks too."""
    if not multiplies_tiles():
        pytest.skip(f"this machine takes {isa()}")
    codec, rng = plugins.codec(qtype), np.random.default_rng(11)
    weights = codec.decode(codec.encode(rng.standard_normal((50, 320)).astype(np.float32)))
    matrix = Matrix.load(team, codec, codec.encode(weights), weights.shape)
    data, blocks = random_blocks(plugins.codec("Q8_0"), 40, 10, 3)
    other = Matrix.load(team, plugins.codec("Q8_0"), data, blocks.shape)
    x = rng.standard_normal((count, 320)).astype(np.float32)
    for found in (Linear(team).matmul(x, matrix)[0], Linear(team).matmul(x, other, matrix)[1]):
        wanted = x.astype(np.float64) @ weights.astype(np.float64).T
        assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()


def test_a_nan_among_activations_shows(plugins, team):
    data, weights = random_blocks(plugins.codec("Q8_0"), 16, 2, 9)
    matrix = Matrix.load(team, plugins.codec("Q8_0"), data, weights.shape)
    x = np.ones((3, 64), np.float32)
    x[0, 5], x[1, 40], x[2] = np.nan, np.inf, 1e-42
    (y,) = Linear(team).matmul(x, matrix)
    assert np.isnan(y[:2]).all()
    assert (np.abs(y[2]) < 1e-30).all()


@pytest.mark.parametrize("way", ["avx512", "avxvnni", "avx2", "generic", "amx-emulated"])
def test_the_other_ways_of_this_machine(way):
    ways = ["amx", "avx512", "avxvnni", "avx2", "generic"]
    if os.environ.get("HF2Q_CPU_ISA"):
        pytest.skip("this process is forced already")
    if way in ways and ways.index(way) <= ways.index(isa()):
        pytest.skip(f"this machine takes {isa()}")
    if way == "avxvnni" and way not in host().features:
        pytest.skip("this processor has no AVX-VNNI")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    command += ["-k", "test_many_rows and False and not Q6_K or nan or IQ4_NL and decodes or floats_in_tiles"]
    done = subprocess.run(command, env=os.environ | {"HF2Q_CPU_ISA": way}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unknown_way_is_refused():
    code = "from hf2q.backends.cpu.isa import isa; print(isa())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"HF2Q_CPU_ISA": "mmx"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "UsageError: HF2Q_CPU_ISA is 'mmx', expected amx, avx512, avxvnni, avx2, generic" in done.stderr
