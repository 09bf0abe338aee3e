"""What tests of the cpu backend's ops are fed with."""

import numpy as np

from hf2q.codec import QuantCodec

F32 = QuantCodec(
    name="F32",
    ggml_type=0,
    block_size=1,
    type_size=4,
    encoder="hf2q.formats.floats:encode_f32",
    decoder="hf2q.formats.floats:decode_f32",
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matrix(ops, values):
    """Values (rows, columns), or a stack of such, as a weight of float32."""
    return ops.matrix(np.ascontiguousarray(values).reshape(-1, values.shape[-1]).view(np.uint8), F32, values.shape)
