"""A toy quantized type that MLX can hold, and trees of arrays: what tests of the MLX backend share."""

import mlx.core as mx
import numpy as np

from hf2q.codec import QuantCodec

F32 = QuantCodec(name="F32", ggml_type=0, block_size=1, type_size=4, encoder="", decoder=f"{__name__}:decode_f32")


def decode_f32(data, out):
    out[...] = np.ascontiguousarray(data).view("<f4")


def codes_of(data, bits):
    """A toy quantized type for tests: each block of 32 is float32 scale and bias, then a byte for each code."""
    blocks = np.ascontiguousarray(data).reshape(len(data), -1, 40)
    numbers = np.ascontiguousarray(blocks[..., :8]).view("<f4")
    return blocks[..., 8:].reshape(len(data), -1) & ((1 << bits) - 1), numbers[..., 0], numbers[..., 1], bits


def affine_3(data):
    return codes_of(data, 3)


def affine_4(data):
    return codes_of(data, 4)


def affine_5(data):
    return codes_of(data, 5)


def affine_6(data):
    return codes_of(data, 6)


def affine_8(data):
    return codes_of(data, 8)


def toy(bits, affine=True):
    return QuantCodec(
        name=f"TOY{bits}",
        ggml_type=1000 + bits,
        block_size=32,
        type_size=40,
        encoder="",
        decoder=f"{__name__}:decode_{bits}",
        affine=f"{__name__}:affine_{bits}" if affine else "",
    )


def _decoder(bits):
    def decode(data, out):
        codes, scales, biases, _ = codes_of(data, bits)
        out[...] = np.repeat(scales, 32, axis=-1) * codes + np.repeat(biases, 32, axis=-1)

    return decode


decode_3, decode_4, decode_5, decode_6, decode_8 = (_decoder(bits) for bits in (3, 4, 5, 6, 8))


def blocks(rows, columns, seed=0):
    """Random bytes of the toy type, with scales of 20 significant bits that half floats cannot hold."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, columns // 32, 40)).astype(np.uint8)
    data[..., :4] = rng.uniform(0.01, 0.1, (rows, columns // 32, 1)).astype("<f4").view(np.uint8)
    data[..., 4:8] = rng.uniform(-1, 0.0, (rows, columns // 32, 1)).astype("<f4").view(np.uint8)
    return data.reshape(rows, -1)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def each(function, x, kind=mx.array):
    if isinstance(x, kind):
        return function(x)
    if isinstance(x, tuple | list):
        return type(x)(each(function, part, kind) for part in x)
    if isinstance(x, dict):
        return {key: each(function, part, kind) for key, part in x.items()}
    return x


def flat(x):
    return [array for part in x for array in flat(part)] if isinstance(x, tuple | list) else [x]
