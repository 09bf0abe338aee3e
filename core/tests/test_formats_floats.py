"""Float conversions against gguf-py, numpy and every 16-bit pattern."""

import gguf
import numpy as np
import pytest

from hf2q import builtin
from hf2q.errors import EncodeError
from hf2q.formats import floats
from hf2q.formats.floats import CHUNK, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16

EVERY = np.arange(65536, dtype=np.uint16)
BF16, F16 = gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.F16


def hard_floats(n=1 << 17):
    """Random bit patterns, with NaNs, infinities, denormals and the neighbours of ties among them."""
    r = np.random.default_rng(5)
    x = r.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32)
    x[: 1 << 16] = np.arange(1 << 16, dtype=np.uint32) << 16 | r.choice([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], 1 << 16)
    return x.view(np.float32)


def test_every_bfloat16_reads_as_its_value_and_comes_back():
    x = bf16_to_f32(EVERY)
    assert (x.view(np.uint32) == EVERY.astype(np.uint32) << 16).all()
    number = ~np.isnan(x)
    assert (f32_to_bf16(x)[number] == EVERY[number]).all()
    assert np.isnan(bf16_to_f32(f32_to_bf16(x))[~number]).all()


def test_bfloat16_rounds_as_gguf_does():
    x = hard_floats()
    want = gguf.quants.quantize(x.reshape(1, -1), BF16).view(np.uint16).reshape(-1)
    assert (f32_to_bf16(x) == want).all()


def test_bfloat16_ties_go_to_even_and_overflow_to_infinity():
    x = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF7FFFFF], np.uint32).view(np.float32)
    assert [hex(v) for v in f32_to_bf16(x)] == ["0x3f80", "0x3f82", "0x3f81", "0x7f80", "0xff80"]


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_float16_rounds_as_gguf_does():
    x = hard_floats()
    x = x[~np.isnan(x)]
    want = gguf.quants.quantize(x.reshape(1, -1), F16).view(np.float16).reshape(-1)
    assert (f32_to_f16(x).view(np.uint16) == want.view(np.uint16)).all()


def test_float16_overflows_to_infinity_without_a_warning():
    x = np.array([65504, 65519.996, 65520, -1e9, 1e-8, np.nan], np.float32)
    got = f32_to_f16(x)
    assert list(got[:5]) == [65504, 65504, np.inf, -np.inf, 0]
    assert np.isnan(got[5])


def test_every_float16_reads_as_its_value():
    assert np.array_equal(f16_to_f32(EVERY.view(np.float16)), EVERY.view(np.float16).astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("shape", [(0,), (3, 5), (2, CHUNK + 1), (2, 3, 4)])
def test_shapes_are_kept_and_layout_does_not_matter(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for there, back in ((f32_to_bf16, bf16_to_f32), (f32_to_f16, f16_to_f32)):
        got = there(x)
        assert got.shape == shape
        assert back(got).shape == shape
        assert (there(np.asfortranarray(x)) == got).all()
        assert there(np.asfortranarray(x)).flags.c_contiguous
        np.testing.assert_allclose(back(got), x, rtol=2**-8)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_codec_kernels_agree_with_gguf(name):
    x = hard_floats()
    x = np.where(np.isnan(x), np.float32(0), x).reshape(16, -1)
    qtype = gguf.GGMLQuantizationType[name.upper()]
    want = gguf.quants.quantize(x, qtype).view(np.uint8)
    out = np.empty_like(want)
    getattr(floats, f"encode_{name}")(x, out, None)
    assert (out == want).all()
    back = np.empty_like(x)
    getattr(floats, f"decode_{name}")(out, back)
    stored = np.ascontiguousarray(want)  # gguf-py's decoder of F32 wants floats, of the others bytes
    values = gguf.quants.dequantize(stored.view(np.float32) if name == "f32" else stored, qtype)
    assert (back.view(np.uint32) == values.view(np.uint32)).all()


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_codec_kernels_read_any_place_in_memory(name):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    out = np.empty((2, 12 if name == "f32" else 6), np.uint8)
    getattr(floats, f"encode_{name}")(x, out, None)
    odd = np.frombuffer(b"?" + out.tobytes(), np.uint8, offset=1).reshape(out.shape)
    back = np.zeros_like(x)
    getattr(floats, f"decode_{name}")(odd, back)
    assert (back == x).all()


def test_whole_numbers_become_int32_and_others_are_refused():
    table = np.array([[0, 5, -3, (1 << 24) - 1]], np.float32)
    codec = next(codec for codec in builtin.hf2q_quant_codecs() if codec.name == "I32")
    data = codec.encode(table)
    assert data.view(np.int32).tolist() == [[0, 5, -3, (1 << 24) - 1]]
    assert np.array_equal(codec.decode(data), table)
    for wrong in (0.5, float(1 << 24), -3e38):
        with pytest.raises(EncodeError, match="whole numbers"):
            codec.encode(np.array([[wrong]], np.float32))
