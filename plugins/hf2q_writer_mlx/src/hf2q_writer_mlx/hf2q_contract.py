"""The contract suite of the writer; nothing else imports this."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from hf2q.testing import WriterContract
from hf2q.types import MetadataField, Plan, Shape, TensorPlan
from hf2q_writer_mlx.affine import SIZES
from hf2q_writer_mlx.codec import affine_codec, storage_codec

TENSORS: tuple[tuple[str, Shape, str], ...] = (
    ("model.embed_tokens.weight", (5, 64), "MLX4_G32_BF16"),
    ("model.norm.weight", (3,), "F32"),
    ("model.layers.0.q_proj.weight", (4, 64), "MLX3_G64_F32"),
    ("model.layers.0.k_proj.weight", (7, 5), "F16"),
    ("model.layers.0.switch_mlp.up_proj.weight", (3, 2, 128), "MLX8_G128_F16"),
    ("model.layers.0.scale", (1,), "BF16"),
    ("lm_head.weight", (2, 64), "MLX6_G64_BF16"),
)


class TestWriter(WriterContract):
    """Folders with tensors of every kind."""

    plugin: ClassVar[str] = "hf2q-writer-mlx"
    name: ClassVar[str] = "mlx"

    @classmethod
    def plan(cls) -> Plan:
        """Every width that is packed in its own way, and floats between."""
        tensors = []
        at = 0
        for name, shape, qtype in TENSORS:
            size = prod(shape[:-1]) * storage_codec(qtype).row_bytes(shape[-1])
            tensors.append(
                TensorPlan(
                    name=name, shape=shape, qtype=qtype, via="F32", reason="test", nbytes=size, offset=at, inputs=()
                )
            )
            at += size
        metadata = (MetadataField.string("config.json", "{}"), MetadataField.string("tokenizer.json", "naïve 東京 🗼"))
        return Plan(arch="test", recipe="test", via="", metadata=metadata, tensors=tuple(tensors))

    @classmethod
    def read_back(cls, path: Path) -> Mapping[str, tuple[Shape, str, bytes]]:
        """By safetensors; the three tensors of a quantized one are put together again, group by group."""
        found = {}
        for tensor in cls.plan().tensors:
            module = tensor.name.removesuffix(".weight")
            codec = affine_codec(tensor.qtype)
            if codec is None:
                shape, data = _stored(path, tensor.name, tensor.qtype)
                found[tensor.name] = (shape, tensor.qtype, data.tobytes())
                continue
            shape, words = _stored(path, f"{module}.weight", "U32")
            _, scales = _stored(path, f"{module}.scales", codec.scales)
            _, biases = _stored(path, f"{module}.biases", codec.scales)
            size = SIZES[codec.scales]
            groups = [words.reshape(-1, codec.group * codec.bits // 8), scales.reshape(-1, size)]
            whole = np.concatenate([*groups, biases.reshape(-1, size)], axis=1)
            found[tensor.name] = ((*shape[:-1], shape[-1] * 32 // codec.bits), tensor.qtype, whole.tobytes())
        return found

    @classmethod
    def content(cls, path: Path) -> Mapping[str, bytes]:
        """Files of the folder by name."""
        return {file.name: file.read_bytes() for file in path.iterdir()}

    @classmethod
    def occupy(cls, path: Path) -> None:
        """A folder with one file."""
        path.mkdir()
        (path / "config.json").write_text("old")


def _stored(path: Path, name: str, dtype: str) -> tuple[Shape, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    """Shape and bytes of a tensor, whose dtype must be the one expected."""
    from safetensors import deserialize

    data = (path / "model.safetensors").read_bytes()
    info = dict(cast("Any", deserialize)(data))[name]
    assert info["dtype"] == dtype, f"{name} is {info['dtype']}"
    return tuple(info["shape"]), np.frombuffer(bytes(info["data"]), np.uint8)
