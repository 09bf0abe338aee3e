"""Core's own plugin: what core provides enters through the same hooks as everybody else's.

Only records are made here; the modules they name are imported when used.
"""

from __future__ import annotations

from collections.abc import Iterator

from hf2q.codec import QuantCodec
from hf2q.hookspecs import hookimpl
from hf2q.types import BackendEntry, Recipe, WriterEntry

HF2Q_PLUGIN_API = 1


@hookimpl
def hf2q_quant_codecs() -> Iterator[QuantCodec]:
    """The types that hold plain numbers; I32 those of tables, whose values pass through float32 exactly."""
    for name, number, size in (("F32", 0, 4), ("F16", 1, 2), ("BF16", 30, 2)):
        yield QuantCodec(
            name=name,
            ggml_type=number,
            block_size=1,
            type_size=size,
            encoder=f"hf2q.formats.floats:encode_{name.lower()}",
            decoder=f"hf2q.formats.floats:decode_{name.lower()}",
            source="IEEE 754; bfloat16 rounds to nearest even (gguf-py, quants.py, BF16)",
        )
    yield QuantCodec(
        name="I32",
        ggml_type=26,
        block_size=1,
        type_size=4,
        encoder="hf2q.formats.floats:encode_i32",
        decoder="hf2q.formats.floats:decode_i32",
        source="ggml/include/ggml.h, GGML_TYPE_I32",
        integers=True,
    )


@hookimpl
def hf2q_recipes() -> Iterator[Recipe]:
    """Files as llama.cpp's converter writes them, before any quantization; ``auto`` in the checkpoint's own type."""
    for name, ftype in (("f32", 0), ("f16", 1), ("bf16", 32)):
        yield Recipe(name=name, ftype=ftype, default=name.upper(), policy="hf2q.convert.floats:policy", quantizes=False)
    yield Recipe(name="auto", ftype=1024, default="BF16", policy="hf2q.convert.floats:policy", quantizes=False)


@hookimpl
def hf2q_writers() -> Iterator[WriterEntry]:
    """GGUF."""
    yield WriterEntry(name="gguf", suffix=".gguf", writer="hf2q.formats.gguf:GgufWriter")


@hookimpl
def hf2q_backends() -> Iterator[BackendEntry]:
    """MLX, SIMD kernels on the CPU, and the slow plain-numpy reference that tests compare with."""
    yield BackendEntry(
        name="mlx",
        backend="hf2q.backends.mlx:MlxOps",
        available="hf2q.backends.mlx:available",
        priority="hf2q.backends.mlx:priority",
        requires='pip install "hf2q[serve]"',
    )
    yield BackendEntry(
        name="cpu",
        backend="hf2q.backends.cpu.ops:CpuOps",
        available="hf2q.backends.cpu:available",
        priority="hf2q.backends.cpu:priority",
        requires='pip install "hf2q[simd]"',
    )
    yield BackendEntry(
        name="reference",
        backend="hf2q.backends.reference:ReferenceOps",
        available="hf2q.backends.reference:available",
        priority="hf2q.backends.reference:priority",
    )
