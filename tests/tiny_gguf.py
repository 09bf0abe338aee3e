"""Small GGUF files of arrays, for tests."""

import numpy as np

from hf2q.formats.gguf import GgufWriter, plan_offsets
from hf2q.types import MetadataField, Plan, TensorPlan

ARCH = MetadataField.string("general.architecture", "toy")


def write_gguf(path, arrays, keys=(ARCH,)):
    """Arrays of float32, float16 or int32."""
    kinds = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.int32): "I32"}
    offsets = plan_offsets(x.nbytes for x in arrays.values())
    tensors = tuple(
        TensorPlan(
            name=n, shape=x.shape, qtype=kinds[x.dtype], via="", reason="", nbytes=x.nbytes, offset=at, inputs=()
        )
        for (n, x), at in zip(arrays.items(), offsets, strict=True)
    )
    writer = GgufWriter(str(path), Plan(arch="", recipe="", via="", metadata=tuple(keys), tensors=tensors))
    for name, x in arrays.items():
        writer.write(name, np.ascontiguousarray(x).reshape(-1).view(np.uint8))
    writer.close()
    return path


def some(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
