"""Writing safetensors files byte by byte, in dtypes that numpy has no name for. Loaded by the tests that need it."""

import json
from math import prod
from pathlib import Path

import numpy as np

BITS = {
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I8": 8,
    "U8": 8,
    "F4": 4,
    "F16": 16,
    "BF16": 16,
    "F32": 32,
    "I64": 64,
}


def write(path, tensors, metadata=None):
    """`tensors`: name -> (dtype, shape, bytes)."""
    header, offset = {"__metadata__": metadata or {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        assert len(data) * 8 == prod(shape) * BITS[dtype], (name, dtype, shape, len(data))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))


def f32(array):
    """A float32 tensor."""
    array = np.asarray(array, "<f4")
    return "F32", array.shape, array.tobytes()


def bf16(array):
    """A bfloat16 tensor of values that are exact in it."""
    array = np.asarray(array, "<f4")
    bits = array.view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return "BF16", array.shape, (bits >> 16).astype("<u2").tobytes()


def codes(dtype, array):
    """A tensor of one-byte codes."""
    array = np.asarray(array, np.uint8)
    return dtype, array.shape, array.tobytes()
