"""hf2q-quant-kquant: ggml's legacy and K block types, and the standard recipes of llama-quantize.

Encoders give the bytes of llama.cpp's x86-64 reference, many weights at a time (see `hf2q.simd`). One module for each
type; `policy` holds the file-level rules, `affine` the lossless repack for MLX. Importing this package imports no
kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

from hf2q.codec import QuantCodec
from hf2q.hookspecs import hookimpl
from hf2q.types import Recipe

HF2Q_PLUGIN_API = 1

SOURCE = "llama.cpp ggml/src/ggml-common.h and ggml/src/ggml-quants.c (October 2026)"

CODECS = (
    # name, ggml type, weights and bytes of a block, whether it is scale * code + bias in groups of 32
    ("Q4_0", 2, 32, 18, True),
    ("Q5_0", 6, 32, 22, True),
    ("Q8_0", 8, 32, 34, True),
    ("Q4_K", 12, 256, 144, True),
    ("Q6_K", 14, 256, 210, False),
)

RECIPES = (
    # name, ftype, default type, aliases
    ("q4_0", 2, "Q4_0", ()),
    ("q8_0", 7, "Q8_0", ()),
    ("q4_k_m", 15, "Q4_K", ("q4_k",)),
    ("q6_k", 18, "Q6_K", ()),
)


@hookimpl
def hf2q_quant_codecs() -> Iterator[QuantCodec]:
    """One codec for each block type."""
    for name, number, block, size, affine in CODECS:
        kernels = f"hf2q_quant_kquant.{name.lower()}"
        yield QuantCodec(
            name=name,
            ggml_type=number,
            block_size=block,
            type_size=size,
            encoder=f"{kernels}:encode",
            decoder=f"{kernels}:decode",
            affine=f"hf2q_quant_kquant.affine:affine_{name.lower()}" if affine else "",
            source=SOURCE,
        )


@hookimpl
def hf2q_recipes() -> Iterator[Recipe]:
    """The standard recipes."""
    for name, ftype, default, aliases in RECIPES:
        yield Recipe(
            name=name,
            ftype=ftype,
            default=default,
            policy="hf2q_quant_kquant.policy:policy",
            quantizes=True,
            aliases=aliases,
        )
