"""Ternary types, MXFP4, IQ2 and IQ3 types: the reference's bytes for any split of the rows, gguf-py's floats."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import gguf
import kquant_coarse_oracle as oracle
import kquant_coarse_reference as coarse
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.errors import EncodeError
from hf2q.simd import WIDE

GUARD = 64
GRID = ("IQ2_XS", "IQ2_S", "IQ3_S", "IQ3_XXS")
WEIGHED = pytest.mark.parametrize("weighed", [False, True], ids=["plain", "importance"])
PEER = os.environ.get("HF2Q_GGML_BASE")


@pytest.fixture(params=coarse.TYPES)
def qtype(request):
    return request.param


@pytest.fixture(scope="session")
def recorded():
    return json.loads(coarse.RECORDED.read_text())


def module(qtype):
    return import_module(f"hf2q_quant_kquant.{qtype.lower()}")


def encode(qtype, x, importance=None):
    """x (rows, columns) or flat; gives uint8 (blocks, bytes per block), with a check that nothing else was written."""
    size, bytes_ = coarse.TYPES[qtype][:2]
    x = x.reshape(1, -1) if x.ndim == 1 else x
    memory = np.full(x.size // size * bytes_ + 2 * GUARD, 0xA5, np.uint8)
    out = memory[GUARD:-GUARD].reshape(len(x), -1)
    module(qtype).encode(x, out, coarse.weights(qtype, x.shape[1], importance))
    assert (memory[:GUARD] == 0xA5).all()
    assert (memory[-GUARD:] == 0xA5).all()
    return out.reshape(-1, bytes_)


def decoded(qtype, data):
    """The decoder's floats and gguf-py's."""
    size, bytes_ = coarse.TYPES[qtype][:2]
    out = np.full((len(data), data.shape[1] // bytes_ * size), 7, np.float32)
    module(qtype).decode(data, out)
    with np.errstate(all="ignore"):
        return out, gguf.quants.dequantize(data, gguf.GGMLQuantizationType[qtype])


def same_floats(got, want):
    """Equal bits; any NaN for a NaN."""
    return ((got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))).all()


def check(qtype, x, importance, want, what):
    """Block by block: the bytes `want`, or a refusal where its scale is not finite (without importance, QuantCodec
    refuses by the scale that the encoder then writes)."""
    size = coarse.TYPES[qtype][0]
    good = coarse.finite(qtype, want)
    if good.all():
        assert np.array_equal(encode(qtype, x, importance), want), (what, qtype)
        return
    for k, (block, bytes_) in enumerate(zip(x.reshape(-1, size), want, strict=True)):
        weights = None if importance is None else importance[k * size :][:size]
        if good[k]:
            assert np.array_equal(encode(qtype, block, weights)[0], bytes_), (what, qtype, k)
        elif qtype not in GRID or coarse.weights(qtype, size, importance) is None:
            assert not coarse.finite(qtype, encode(qtype, block, weights)).any(), (what, qtype, k)
        else:
            with pytest.raises(EncodeError, match=f"{qtype} cannot hold columns 0 to 255 of row 0"):
                encode(qtype, block, weights)


# ------------------------------------------------------------------------------------------------ recorded bytes


def test_golden_blocks(qtype, reference, recorded):
    x, importance = reference.golden_input(), reference.golden_importance()
    assert encode(qtype, x).tobytes().hex() == recorded["types"][qtype]["golden"]
    assert encode(qtype, x, importance).tobytes().hex() == recorded["types"][qtype]["golden with importance"]


def test_importance_counts_for_grids_only(qtype, recorded):
    types = recorded["types"][qtype]
    assert (types["golden"] != types["golden with importance"]) == (qtype in GRID)


def test_large_inputs_have_the_recorded_bytes(reference, recorded):
    weights = reference.importance(5, reference.COLUMNS)
    assert reference.digest(weights) == recorded["inputs"]["importance"]
    for name, x in coarse.inputs(reference).items():
        assert reference.digest(x) == recorded["inputs"][name], f"the input {name} is not what was recorded"
        for qtype in coarse.TYPES:
            want = recorded["types"][qtype]
            assert reference.digest(encode(qtype, x)) == want["sha256"][name], (qtype, name)
            assert reference.digest(encode(qtype, x, weights)) == want["sha256 with importance"][name], (qtype, name)


# --------------------------------------------------------------------------------------------------- the oracle


def test_adversarial_rows_equal_the_oracle(qtype, reference):
    for name, x in reference.adversarial().items():
        x = x[:512]
        check(qtype, x, None, oracle.encode(qtype, x, coarse.weights(qtype, 512, None)), name)


def test_any_importance_equals_the_oracle(reference):
    cases = reference.adversarial(1)
    rows = {name: cases[name] for name in ("1e3", "one outlier", "sparse", "ternary", "1e-9", "denormal")}
    for name, x in rows.items():
        x = x[:512]
        for kind, importance in reference.importances(512).items():
            for qtype in GRID:
                check(qtype, x, importance, oracle.encode(qtype, x, importance), (name, kind))


WEIGHTS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-1, 1, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 65504.0, -65504.0, 1e-9, -1e-9]),
)


@settings(max_examples=15, deadline=None)
@given(
    values=st.lists(WEIGHTS, min_size=1, max_size=32),
    power=st.integers(-30, 20),
    seed=st.integers(0, 99),
    weighed=st.booleans(),
)
def test_any_block_equals_the_oracle(values, power, seed, weighed):
    """Drawn values in random places of two blocks, between weights of an ordinary size."""
    r = np.random.default_rng(seed)
    x = np.ldexp(r.standard_normal(512), power).astype(np.float32)
    x[r.permutation(512)[: 8 * len(values)]] = np.tile(np.array(values, np.float32), 8)
    importance = np.where(r.random(512) < 0.2, 0, r.random(512) ** 4).astype(np.float32) if weighed else None
    for qtype in coarse.TYPES:
        check(qtype, x, importance, oracle.encode(qtype, x, coarse.weights(qtype, 512, importance)), values)


# -------------------------------------------------------------------------------------------------- rows, blocks


@WEIGHED
def test_every_number_of_blocks(qtype, weighed, reference):
    """A last group of lanes that is not full repeats its last block and writes nothing beyond."""
    size = coarse.TYPES[qtype][0]
    x = reference.bell(9, size * (2 * WIDE + 1)).reshape(-1, size)
    importance = reference.importance(9, size) if weighed else None
    whole = encode(qtype, x, importance)
    for blocks in (1, 2, WIDE - 1, WIDE, WIDE + 1, 2 * WIDE):
        assert np.array_equal(encode(qtype, x[:blocks], importance), whole[:blocks]), blocks


@WEIGHED
def test_any_split_of_rows_gives_the_same_bytes(qtype, weighed, reference):
    columns = 3 * coarse.TYPES[qtype][0]
    x = reference.heavy(10, 24 * columns).reshape(24, -1)
    importance = reference.importance(10, columns) if weighed else None
    whole = encode(qtype, x, importance)
    for step in (1, 5, 23):
        parts = [encode(qtype, x[start : start + step], importance) for start in range(0, 24, step)]
        assert np.array_equal(np.concatenate(parts), whole), step
    tiled = None if importance is None else np.tile(importance, 24)
    assert np.array_equal(encode(qtype, x.reshape(-1), tiled), whole)


def test_threads_share_a_kernel(qtype, reference):
    x = reference.bell(11, 256 * 128).reshape(8, -1)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda k: encode(qtype, x[k : k + 1]), range(8)))
    assert np.array_equal(np.concatenate(parts), encode(qtype, x))


def test_arrays_that_are_not_contiguous_are_refused(qtype):
    size, bytes_ = coarse.TYPES[qtype][:2]
    x, out = np.zeros((4, 2 * size), np.float32), np.zeros((4, 2 * bytes_), np.uint8)
    weights = coarse.weights(qtype, size, None)
    with pytest.raises(TypeError):
        module(qtype).encode(x[:, :size], out[:, :bytes_].copy(), weights)
    with pytest.raises(TypeError):
        module(qtype).encode(x[:, :size].copy(), out[:, :bytes_], weights)
    with pytest.raises(TypeError):
        module(qtype).decode(out[:, :bytes_], x[:, :size].copy())


# ------------------------------------------------------------------------------------------------------ decoding


def test_decoding_every_scale(qtype):
    size, bytes_, at = coarse.TYPES[qtype][:3]
    r = np.random.default_rng(3)
    scales = np.arange(0, 65536, 1 if size == 32 else 8, dtype=np.uint16)
    data = r.integers(0, 256, (len(scales), bytes_), dtype=np.uint8)
    if at is None:
        data[:, 0] = scales & 255
    else:
        data[:, at : at + 2] = r.permutation(scales)[:, None].view(np.uint8)
    got, want = decoded(qtype, data.reshape(64, -1))
    assert same_floats(got, want)
    assert np.isfinite(want).mean() > 0.9


def test_decoding_every_code(qtype):
    """All points of the grids, all signs, all scales of sub-blocks: any byte in any place."""
    bytes_ = coarse.TYPES[qtype][1]
    data = np.random.default_rng(4).permuted(np.tile(np.arange(256, dtype=np.uint8), (bytes_, 4)), axis=1).T
    got, want = decoded(qtype, np.ascontiguousarray(data))
    assert same_floats(got, want)


def test_read_only_and_unaligned_data(qtype):
    data = np.random.default_rng(6).integers(0, 100, (2, coarse.TYPES[qtype][1] * 3), dtype=np.uint8)
    frozen = np.frombuffer(b"?" + data.tobytes(), np.uint8, offset=1).reshape(data.shape)
    assert same_floats(decoded(qtype, frozen)[0], decoded(qtype, data)[0])


def test_what_was_encoded_is_close(qtype, reference):
    """Weights that suit the type: three values for the ternary ones, close to normal for the others."""
    x = reference.bell(5, 256 * 300).reshape(3, -1)
    if qtype.startswith("TQ"):
        x = np.sign(x) * (np.abs(x) > 0.02) * np.float32(0.25)
    data = encode(qtype, x).reshape(3, -1)
    got, want = decoded(qtype, data)
    assert same_floats(got, want)
    bound = {"TQ1_0": 0, "TQ2_0": 0, "MXFP4": 0.14, "IQ2_XS": 0.36, "IQ2_S": 0.31, "IQ3_S": 0.17, "IQ3_XXS": 0.21}[
        qtype
    ]
    assert np.sqrt(np.mean((got - x) ** 2) / np.mean(x**2)) <= bound


def test_no_rows_and_no_columns(qtype):
    size, bytes_ = coarse.TYPES[qtype][:2]
    for rows, blocks in ((0, 1), (1, 0)):
        data, x = np.zeros((rows, blocks * bytes_), np.uint8), np.zeros((rows, blocks * size), np.float32)
        module(qtype).decode(data, x)
        module(qtype).encode(x, data, coarse.weights(qtype, blocks * size, None))
        module(qtype).encode(x, data, np.ones(blocks * size, np.float32))


# ------------------------------------------------------------------------------------- where a type has its edges


def test_mxfp4_exponents_at_every_power_of_two():
    """Just below a power of two the reference's logarithm rounds up to it, and with it the exponent."""
    bits = ((np.arange(-125, 129)[:, None] + 127) << 23) - np.arange(-2, 100)
    largest = bits.clip(0, 0x7F7FFFFF).astype(np.uint32).view(np.float32).reshape(-1, 1)
    x = (largest * np.linspace(-1, 0.96, 32)).astype(np.float32)
    data = encode("MXFP4", x)
    assert np.array_equal(data, oracle.encode("MXFP4", x))
    assert len(set(data[:, 0])) == 254
    assert np.isfinite(decoded("MXFP4", data)[0]).all()


def test_mxfp4_codes_half_way_between_two_steps():
    steps = np.arange(-24, 25) * 0.5
    x = np.repeat(steps, 32).reshape(-1, 32).astype(np.float32)
    x[:, 0] = 12
    for power in (-130, -126, -20, 0, 100):
        scaled = np.ldexp(x, power).astype(np.float32)
        assert np.array_equal(encode("MXFP4", scaled), oracle.encode("MXFP4", scaled)), power


def test_mxfp4_keeps_tiny_weights():
    """Below 2**-125 the reference stores zeros with a wrapped exponent; the smallest step serves those better."""
    x = (np.arange(-16, 16) * 2.0**-129).astype(np.float32)
    data = encode("MXFP4", x)
    assert data[0, 0] == 0
    assert np.abs(decoded("MXFP4", data)[0] - x).max() <= 2.0**-127


def test_tq1_0_packs_every_five_digits():
    digits = np.array(np.meshgrid(*[[-1, 0, 1]] * 5, indexing="ij")).reshape(5, -1)
    blocks = np.zeros((8, 256), np.float32)
    for k in range(243):
        blocks[k // 32, k % 32 : 160 : 32] = digits[:, k]
    data = encode("TQ1_0", blocks)
    want = (np.arange(243) * 256 + 242) // 243
    assert np.array_equal(data[:, :32].reshape(-1)[:243], want)
    assert np.array_equal(decoded("TQ1_0", data)[0].reshape(8, 256), blocks)


def test_iq3_s_zeros_in_one_sub_block_leave_the_others_alone(reference):
    """The reference writes points and signs after such a sub-block to the wrong place (October 2026)."""
    x = reference.bell(12, 256)
    before = decoded("IQ3_S", encode("IQ3_S", x))[0][0]
    x[64:96] = 0
    after = decoded("IQ3_S", encode("IQ3_S", x))[0][0]
    others = np.r_[0:64, 96:256]
    assert np.array_equal(before[others], after[others])


@pytest.mark.parametrize("qtype", GRID)
def test_importance_that_overflows_is_refused(qtype, reference):
    x, importance = reference.bell(13, 3 * 768).reshape(3, 768), np.ones(768, np.float32)
    x[0], x[1:, :512] = 0, 0
    importance[520:530] = 3e38
    with pytest.raises(EncodeError, match=f"{qtype} cannot hold columns 512 to 767 of row 1: .* overflow"):
        encode(qtype, 1e6 * x, importance)


@pytest.mark.skipif(not PEER, reason="HF2Q_GGML_BASE does not name a libggml-base")
@WEIGHED
def test_bytes_equal_the_peers(qtype, weighed, reference):
    peer = coarse.peer_encoder(PEER)
    for seed in range(3):
        for name, x in reference.adversarial(seed).items():
            importance = reference.importance(seed, x.size) if weighed else None
            size = coarse.TYPES[qtype][0]
            for k, part in enumerate(x.reshape(-1, size)):
                weights = None if importance is None else importance[k * size :][:size]
                if np.abs(part).max() > 65504 and qtype != "MXFP4":
                    continue  # some of these end the peer's process
                if qtype == "IQ3_S" and 0 < (part.reshape(8, 32) == 0).all(1).sum() < 8:
                    continue
                if qtype == "MXFP4" and 0 < np.abs(part).max() < 2.0**-125:
                    continue
                assert np.array_equal(encode(qtype, part, weights), peer(qtype, part, weights)), (seed, name, k)
    x = (np.random.default_rng().standard_normal((16, 1 << 14)) * 0.02).astype(np.float32)
    importance = reference.importance(7, x.shape[1]) if weighed else None
    assert np.array_equal(encode(qtype, x, importance), peer(qtype, x, importance))
