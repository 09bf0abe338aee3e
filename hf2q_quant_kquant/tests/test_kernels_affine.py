"""The repack to MLX's affine form: every weight kept, and read back by MLX itself."""

from importlib import import_module

import numpy as np
import pytest

from hf2q_quant_kquant import affine

BLOCKS = {
    "Q8_0": (32, 34, [0]),
    "Q4_0": (32, 18, [0]),
    "Q4_1": (32, 20, [0, 2]),
    "Q5_0": (32, 22, [0]),
    "Q5_1": (32, 24, [0, 2]),
    "Q4_K": (256, 144, [0, 2]),
    "Q5_K": (256, 176, [0, 2]),
}


@pytest.fixture(params=BLOCKS)
def qtype(request):
    return request.param


def some_bytes(qtype, rows=6, columns=1024):
    """Random blocks with finite scales of both signs and all magnitudes of a half."""
    size, bytes_, halves = BLOCKS[qtype]
    r = np.random.default_rng(8)
    blocks = r.integers(0, 256, (rows, columns // size, bytes_), dtype=np.uint8)
    for at in halves:
        scale = r.integers(0, 65536, (rows, columns // size, 1)).astype(np.uint16)
        scale[(scale & 0x7C00) == 0x7C00] = 0x3C00  # neither infinity nor NaN
        blocks[..., at : at + 2] = scale.view(np.uint8)
    return blocks.reshape(rows, -1)


def repack(qtype, data):
    return getattr(affine, f"affine_{qtype.lower()}")(data)


def decoded(qtype, data, columns):
    out = np.zeros((len(data), columns), np.float32)
    import_module(f"hf2q_quant_kquant.{qtype.lower()}").decode(data, out)
    return out


def test_scale_times_code_plus_bias_is_the_weight(qtype):
    data = some_bytes(qtype)
    codes, scales, biases, bits = repack(qtype, data)
    assert codes.dtype == np.uint8
    assert codes.max() == 2**bits - 1
    assert scales.shape == biases.shape == (len(data), codes.shape[1] // 32)
    assert scales.dtype == biases.dtype == np.float32
    weights = codes * scales.repeat(32, 1) + biases.repeat(32, 1)
    want = decoded(qtype, data, codes.shape[1])
    # `+ 0` turns a negative zero into zero: the one difference there may be
    assert ((weights + 0).view(np.uint32) == (want + 0).view(np.uint32)).all()


@pytest.mark.mlx
def test_mlx_reads_the_same_weights(qtype):
    mx = pytest.importorskip("mlx.core", reason="MLX is not installed")
    pack = import_module("hf2q.backends.mlx.pack").pack
    data = some_bytes(qtype)
    codes, scales, biases, bits = repack(qtype, data)
    packed = [mx.array(a) for a in (pack(codes, bits), scales, biases)]
    got = np.array(mx.dequantize(*packed, group_size=32, bits=bits))
    assert got.dtype == np.float32
    want = decoded(qtype, data, codes.shape[1])
    assert ((got + 0).view(np.uint32) == (want + 0).view(np.uint32)).all()
