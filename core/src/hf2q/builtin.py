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
    """The types that hold plain numbers."""
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


@hookimpl
def hf2q_recipes() -> Iterator[Recipe]:
    """Files as llama.cpp's converter writes them, before any quantization."""
    for name, ftype in (("f32", 0), ("f16", 1), ("bf16", 32)):
        yield Recipe(name=name, ftype=ftype, default=name.upper(), policy="hf2q.convert.floats:policy", quantizes=False)


@hookimpl
def hf2q_writers() -> Iterator[WriterEntry]:
    """GGUF."""
    yield WriterEntry(name="gguf", suffix=".gguf", writer="hf2q.formats.gguf:GgufWriter")


@hookimpl
def hf2q_backends() -> Iterator[BackendEntry]:
    """MLX, and the slow plain-numpy reference that tests compare with."""
    yield BackendEntry(
        name="mlx",
        backend="hf2q.backends.mlx:MlxOps",
        available="hf2q.backends.mlx:available",
        priority="hf2q.backends.mlx:priority",
        requires='pip install "hf2q[serve]"',
    )
    yield BackendEntry(
        name="reference",
        backend="hf2q.backends.reference:ReferenceOps",
        available="hf2q.backends.reference:available",
        priority="hf2q.backends.reference:priority",
    )
