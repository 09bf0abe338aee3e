"""Encoders: the reference's bytes, block by block, for any split of the rows."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.errors import EncodeError
from hf2q.simd import WIDE

BLOCKS = {"Q8_0": (32, 34), "Q4_0": (32, 18), "Q5_0": (32, 22), "Q4_K": (256, 144), "Q6_K": (256, 210)}
GUARD = 64


def encode(qtype, x, importance=None):
    """x (rows, columns) or flat; gives uint8 (blocks, bytes per block), with a check that nothing else was written."""
    size, bytes_ = BLOCKS[qtype]
    x = x.reshape(1, -1) if x.ndim == 1 else x
    memory = np.full(x.size // size * bytes_ + 2 * GUARD, 0xA5, np.uint8)
    out = memory[GUARD:-GUARD].reshape(len(x), -1)
    import_module(f"hf2q_quant_kquant.{qtype.lower()}").encode(x, out, importance)
    assert (memory[:GUARD] == 0xA5).all()
    assert (memory[-GUARD:] == 0xA5).all()
    return out.reshape(-1, bytes_)


@pytest.fixture(params=BLOCKS)
def qtype(request):
    return request.param


def test_golden_blocks(qtype, reference):
    recorded = json.loads(reference.RECORDED.read_text())["types"][qtype]["golden"]
    assert encode(qtype, reference.golden_input()).tobytes().hex() == recorded


def test_large_inputs_have_the_recorded_bytes(reference):
    recorded = json.loads(reference.RECORDED.read_text())
    for name, x in reference.inputs().items():
        assert reference.digest(x) == recorded["inputs"][name], f"the input {name} is not what was recorded"
        for qtype in BLOCKS:
            assert reference.digest(encode(qtype, x)) == recorded["types"][qtype]["sha256"][name], (qtype, name)


def test_adversarial_rows_equal_the_oracle(qtype, reference, oracle):
    for name, x in reference.adversarial().items():
        assert np.array_equal(encode(qtype, x), oracle.encode(qtype, x)), name


WEIGHTS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-1, 1, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 65504.0, -65504.0, 1e-9, -1e-9]),
)


@settings(max_examples=30, deadline=None)
@given(values=st.lists(WEIGHTS, min_size=1, max_size=32), power=st.integers(-30, 30), seed=st.integers(0, 99))
def test_any_block_equals_the_oracle(oracle, values, power, seed):
    """Drawn values in random places of two blocks, between weights of an ordinary size."""
    r = np.random.default_rng(seed)
    x = np.ldexp(r.standard_normal(512), power).astype(np.float32)
    x[r.permutation(512)[: 8 * len(values)]] = np.tile(np.array(values, np.float32), 8)
    for qtype in BLOCKS:
        assert np.array_equal(encode(qtype, x), oracle.encode(qtype, x)), qtype


def test_every_number_of_blocks(qtype, reference):
    """A last group of lanes that is not full repeats its last block and writes nothing beyond."""
    size = BLOCKS[qtype][0]
    x = reference.bell(9, size * (2 * WIDE + 1))
    whole = encode(qtype, x)
    for blocks in range(2 * WIDE + 1):
        assert np.array_equal(encode(qtype, x[: blocks * size]), whole[:blocks]), blocks


def test_any_split_of_rows_gives_the_same_bytes(qtype, reference):
    x = reference.bell(10, 24 * 3 * BLOCKS[qtype][0]).reshape(24, -1)
    whole = encode(qtype, x)
    for step in (1, 5, 23):
        parts = [encode(qtype, x[start : start + step]) for start in range(0, 24, step)]
        assert np.array_equal(np.concatenate(parts), whole), step
    assert np.array_equal(encode(qtype, x.reshape(-1)), whole)


def test_threads_share_a_kernel(qtype, reference):
    x = reference.bell(11, 256 * 512).reshape(8, -1)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda k: encode(qtype, x[k : k + 1]), range(8)))
    assert np.array_equal(np.concatenate(parts), encode(qtype, x))


def test_importance_is_refused_where_it_would_matter(qtype, reference):
    x = reference.golden_input()
    importance = np.ones(256, np.float32)
    if qtype == "Q8_0":
        assert np.array_equal(encode(qtype, x, importance), encode(qtype, x))
        return
    with pytest.raises(EncodeError, match=f"{qtype}: the encoder has no importance-weighted search"):
        encode(qtype, x, importance)


def test_arrays_that_are_not_contiguous_are_refused(qtype):
    size, bytes_ = BLOCKS[qtype]
    module = import_module(f"hf2q_quant_kquant.{qtype.lower()}")
    x, out = np.zeros((4, 2 * size), np.float32), np.zeros((4, 2 * bytes_), np.uint8)
    with pytest.raises(TypeError):
        module.encode(x[:, :size], out[:, :bytes_].copy(), None)
    with pytest.raises(TypeError):
        module.encode(x[:, :size].copy(), out[:, :bytes_], None)
    with pytest.raises(TypeError):
        module.decode(out[:, :bytes_], x[:, :size].copy())


@pytest.mark.skipif(not os.environ.get("HF2Q_GGML_BASE"), reason="HF2Q_GGML_BASE does not name a libggml-base")
def test_bytes_equal_the_peers(qtype, reference):
    peer = reference.peer_encoder(os.environ["HF2Q_GGML_BASE"])
    for seed in range(3):
        for name, x in reference.adversarial(seed).items():
            assert np.array_equal(encode(qtype, x), peer(qtype, x)), (seed, name)
    x = (np.random.default_rng().standard_normal(1 << 18) * 0.02).astype(np.float32)
    assert np.array_equal(encode(qtype, x), peer(qtype, x))
