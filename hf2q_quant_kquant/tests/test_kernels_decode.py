"""Decoders against gguf-py, bit for bit: every scale that a half can hold, random codes, and encoded weights."""

from importlib import import_module

import gguf
import numpy as np
import pytest

BLOCKS = {
    # qtype: weights of a block, its bytes, where its float16 numbers begin, relative error of standard normal weights
    "Q8_0": (32, 34, [0], 0.006),
    "Q4_0": (32, 18, [0], 0.10),
    "Q4_1": (32, 20, [0, 2], 0.09),
    "Q5_0": (32, 22, [0], 0.05),
    "Q5_1": (32, 24, [0, 2], 0.045),
    "Q2_K": (256, 84, [80, 82], 0.35),
    "Q3_K": (256, 110, [108], 0.2),
    "Q4_K": (256, 144, [0, 2], 0.08),
    "Q5_K": (256, 176, [0, 2], 0.04),
    "Q6_K": (256, 210, [208], 0.02),
    "IQ4_NL": (32, 18, [0], 0.08),
    "IQ4_XS": (256, 136, [0], 0.08),
}


@pytest.fixture(params=BLOCKS)
def qtype(request):
    return request.param


def both(qtype, data):
    """The decoder's floats and gguf-py's."""
    size, bytes_ = BLOCKS[qtype][:2]
    out = np.full((len(data), data.shape[1] // bytes_ * size), 7, np.float32)
    import_module(f"hf2q_quant_kquant.{qtype.lower()}").decode(data, out)
    with np.errstate(all="ignore"):
        return out, gguf.quants.dequantize(data, gguf.GGMLQuantizationType[qtype])


def same(got, want):
    """Equal bits; any NaN for a NaN."""
    bits = got.view(np.uint32) == want.view(np.uint32)
    return (bits | (np.isnan(got) & np.isnan(want))).all()


def test_every_scale(qtype):
    r = np.random.default_rng(3)
    step = 1 if BLOCKS[qtype][0] == 32 else 8
    scales = np.arange(0, 65536, step, dtype=np.uint16)
    data = r.integers(0, 256, (len(scales), BLOCKS[qtype][1]), dtype=np.uint8)
    for at in BLOCKS[qtype][2]:
        data[:, at : at + 2] = r.permutation(scales)[:, None].view(np.uint8)
    got, want = both(qtype, data.reshape(64, -1))
    assert same(got, want)
    assert np.isfinite(want).mean() > 0.9


def test_every_code_with_an_ordinary_scale(qtype):
    r = np.random.default_rng(4)
    data = r.integers(0, 256, (600, BLOCKS[qtype][1]), dtype=np.uint8)
    for at in BLOCKS[qtype][2]:
        data[:, at : at + 2] = (r.standard_normal((600, 1)) * 0.01).astype(np.float16).view(np.uint8)
    got, want = both(qtype, data)
    assert (got.view(np.uint32) == want.view(np.uint32)).all()


def test_what_was_encoded_is_close(qtype, reference):
    size, bytes_ = BLOCKS[qtype][:2]
    x = reference.bell(5, 256 * 300).reshape(3, -1)
    data = np.zeros((3, x.shape[1] // size * bytes_), np.uint8)
    import_module(f"hf2q_quant_kquant.{qtype.lower()}").encode(x, data, None)
    got, want = both(qtype, data)
    assert (got.view(np.uint32) == want.view(np.uint32)).all()
    assert np.sqrt(np.mean((got - x) ** 2) / np.mean(x**2)) < BLOCKS[qtype][3]


def test_read_only_and_unaligned_data(qtype):
    r = np.random.default_rng(6)
    data = r.integers(0, 100, (2, BLOCKS[qtype][1] * 3), dtype=np.uint8)
    frozen = np.frombuffer(b"?" + data.tobytes(), np.uint8, offset=1).reshape(data.shape)
    assert same(both(qtype, frozen)[0], both(qtype, data)[0])


def test_no_rows_and_no_columns(qtype):
    size, bytes_ = BLOCKS[qtype][:2]
    module = import_module(f"hf2q_quant_kquant.{qtype.lower()}")
    for rows, blocks in ((0, 1), (1, 0)):
        data, x = np.zeros((rows, blocks * bytes_), np.uint8), np.zeros((rows, blocks * size), np.float32)
        module.decode(data, x)
        module.encode(x, data, None)
