"""Encoders: the reference's bytes, block by block, for any split of the rows, with importance and without."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.simd import WIDE

BLOCKS = {
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
}
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


@pytest.fixture(scope="session")
def same(reference):
    """same(qtype, got, want): equal bytes wherever `want` has finite scales, and no finite scales elsewhere."""

    def compare(qtype, got, want):
        finite = reference.finite(qtype, want)
        return np.array_equal(finite, reference.finite(qtype, got)) and np.array_equal(got[finite], want[finite])

    return compare


def test_golden_blocks(qtype, reference):
    recorded = json.loads(reference.RECORDED.read_text())["types"][qtype]
    x, importance = reference.golden_input(), reference.golden_importance()
    assert encode(qtype, x).tobytes().hex() == recorded["golden"]
    assert encode(qtype, x, importance).tobytes().hex() == recorded["golden with importance"]
    assert (recorded["golden"] == recorded["golden with importance"]) == (qtype == "Q8_0")


def test_large_inputs_have_the_recorded_bytes(reference):
    recorded = json.loads(reference.RECORDED.read_text())
    importance = reference.importance(5, reference.COLUMNS)
    assert reference.digest(importance) == recorded["inputs"]["importance"]
    for name, flat in reference.inputs().items():
        assert reference.digest(flat) == recorded["inputs"][name], f"the input {name} is not what was recorded"
        x = flat.reshape(-1, reference.COLUMNS)
        for qtype in BLOCKS:
            known = recorded["types"][qtype]
            assert reference.digest(encode(qtype, x)) == known["sha256"][name], (qtype, name)
            weighted = encode(qtype, x, importance)
            assert reference.digest(weighted) == known["sha256 with importance"][name], (qtype, name, "importance")


def test_adversarial_rows_equal_the_oracle(qtype, reference, oracle, same):
    for name, x in reference.adversarial().items():
        rows = x[:1024].reshape(2, 512)
        assert same(qtype, encode(qtype, rows), oracle.encode(qtype, rows)), name


def test_adversarial_rows_with_importance_equal_the_oracle(qtype, reference, oracle, same):
    """Each kind of row with one kind of importance; all pairs are compared where the peer is at hand."""
    kinds = cycle(reference.importances(256).items())
    for name, x in reference.adversarial().items():
        rows, (kind, importance) = x[:512].reshape(2, 256), next(kinds)
        want = oracle.encode(qtype, rows, importance)
        assert same(qtype, encode(qtype, rows, importance), want), (name, kind)


WEIGHTS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-1, 1, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 65504.0, -65504.0, 1e-9, -1e-9]),
)
IMPORTANCE = st.one_of(st.none(), st.sampled_from(["usual", "ones", "zeros among others", "zero blocks", "one column"]))


@settings(max_examples=12, deadline=None)
@given(
    values=st.lists(WEIGHTS, min_size=1, max_size=32),
    power=st.integers(-30, 30),
    seed=st.integers(0, 99),
    kind=IMPORTANCE,
)
def test_any_block_equals_the_oracle(oracle, reference, same, values, power, seed, kind):
    """Drawn values in random places of two rows, between weights of an ordinary size."""
    r = np.random.default_rng(seed)
    x = np.ldexp(r.standard_normal(512), power).astype(np.float32)
    x[r.permutation(512)[: 8 * len(values)]] = np.tile(np.array(values, np.float32), 8)
    rows, importance = x.reshape(2, 256), None if kind is None else reference.importances(256, seed)[kind]
    for qtype in BLOCKS:
        assert same(qtype, encode(qtype, rows, importance), oracle.encode(qtype, rows, importance)), qtype


def test_what_a_half_holds_stays_finite(qtype, reference):
    """Weights up to the largest half, with importance up to a million, give blocks that decode to finite weights."""
    size = BLOCKS[qtype][0]
    decode = import_module(f"hf2q_quant_kquant.{qtype.lower()}").decode
    cases = {name: x for name, x in reference.adversarial(1).items() if np.abs(x).max() <= 65504}
    assert len(cases) > 20
    for name, x in cases.items():
        kinds = {"none": None} | reference.importances(512, 1)
        del kinds["large"]
        for kind, importance in kinds.items():
            data = encode(qtype, x.reshape(-1, 512), importance)
            out = np.empty((len(data), size), np.float32)
            decode(np.ascontiguousarray(data), out)
            assert np.isfinite(out).all(), (name, kind)


def test_every_number_of_blocks(qtype, reference):
    """A last group of lanes that is not full repeats its last block and writes nothing beyond."""
    size = BLOCKS[qtype][0]
    x = reference.bell(9, size * (2 * WIDE + 1))
    whole = encode(qtype, x)
    for blocks in range(2 * WIDE + 1):
        assert np.array_equal(encode(qtype, x[: blocks * size]), whole[:blocks]), blocks


def test_any_split_of_rows_gives_the_same_bytes(qtype, reference):
    """Rows of three blocks, so that a group of lanes begins anywhere in a row."""
    columns = 3 * BLOCKS[qtype][0]
    x = reference.bell(10, 47 * columns).reshape(47, -1)
    for importance in (None, reference.importance(6, columns)):
        whole = encode(qtype, x, importance)
        for step in (1, 5, 23):
            parts = [encode(qtype, x[start : start + step], importance) for start in range(0, len(x), step)]
            assert np.array_equal(np.concatenate(parts), whole), step
    assert np.array_equal(encode(qtype, x.reshape(-1)), encode(qtype, x))


def test_threads_share_a_kernel(qtype, reference):
    x, importance = reference.bell(11, 256 * 512).reshape(8, -1), reference.importance(7, 256 * 64)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda k: encode(qtype, x[k : k + 1], importance), range(8)))
    assert np.array_equal(np.concatenate(parts), encode(qtype, x, importance))


def test_importance_counts_except_for_q8_0(qtype, reference):
    x, importance = reference.bell(12, 4 * 512).reshape(4, -1), reference.importance(8, 512)
    assert np.array_equal(encode(qtype, x, importance), encode(qtype, x)) == (qtype == "Q8_0")


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
def test_bytes_equal_the_peers(qtype, reference, same):
    peer = reference.peer_encoder(os.environ["HF2Q_GGML_BASE"])
    for seed in range(3):
        for name, x in reference.adversarial(seed).items():
            assert same(qtype, encode(qtype, x), peer(qtype, x)), (seed, name)
            rows = x.reshape(2, -1)
            for kind, importance in reference.importances(1024, seed).items():
                want = peer(qtype, rows, importance)
                assert same(qtype, encode(qtype, rows, importance), want), (seed, name, kind)
    x = (np.random.default_rng().standard_normal((64, 4096)) * 0.02).astype(np.float32)
    importance = reference.importances(4096)["usual"]
    assert np.array_equal(encode(qtype, x), peer(qtype, x))
    assert np.array_equal(encode(qtype, x, importance), peer(qtype, x, importance))
