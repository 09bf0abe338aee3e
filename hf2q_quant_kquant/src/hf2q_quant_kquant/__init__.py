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
    ("Q4_1", 3, 32, 20, True),
    ("Q5_0", 6, 32, 22, True),
    ("Q5_1", 7, 32, 24, True),
    ("Q8_0", 8, 32, 34, True),
    ("Q2_K", 10, 256, 84, False),
    ("Q3_K", 11, 256, 110, False),
    ("Q4_K", 12, 256, 144, True),
    ("Q5_K", 13, 256, 176, True),
    ("Q6_K", 14, 256, 210, False),
    ("IQ2_XS", 17, 256, 74, False),
    ("IQ3_XXS", 18, 256, 98, False),
    ("IQ4_NL", 20, 32, 18, False),
    ("IQ3_S", 21, 256, 110, False),
    ("IQ2_S", 22, 256, 82, False),
    ("IQ4_XS", 23, 256, 136, False),
    ("TQ1_0", 34, 256, 54, False),
    ("TQ2_0", 35, 256, 66, False),
    ("MXFP4", 39, 32, 17, False),
)

NEED_IMPORTANCE = frozenset({"IQ2_XS"})
"""Types for which the reference has no search without importance."""

RECIPES = (
    # name, ftype, default type, aliases; numbers: llama.cpp, include/llama.h, enum llama_ftype
    ("q4_0", 2, "Q4_0", ()),
    ("q4_1", 3, "Q4_1", ()),
    ("q8_0", 7, "Q8_0", ()),
    ("q5_0", 8, "Q5_0", ()),
    ("q5_1", 9, "Q5_1", ()),
    ("q2_k", 10, "Q2_K", ()),
    ("q3_k_s", 11, "Q3_K", ()),
    ("q3_k_m", 12, "Q3_K", ("q3_k",)),
    ("q3_k_l", 13, "Q3_K", ()),
    ("q4_k_s", 14, "Q4_K", ()),
    ("q4_k_m", 15, "Q4_K", ("q4_k",)),
    ("q5_k_s", 16, "Q5_K", ()),
    ("q5_k_m", 17, "Q5_K", ("q5_k",)),
    ("q6_k", 18, "Q6_K", ()),
    ("q2_k_s", 21, "Q2_K", ()),
    ("iq3_xs", 22, "IQ3_S", ()),
    ("iq3_xxs", 23, "IQ3_XXS", ()),
    ("iq4_nl", 25, "IQ4_NL", ()),
    ("iq3_s", 26, "IQ3_S", ()),
    ("iq3_m", 27, "IQ3_S", ()),
    ("iq2_s", 28, "IQ2_XS", ()),
    ("iq2_m", 29, "IQ2_S", ()),
    ("iq4_xs", 30, "IQ4_XS", ()),
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
            needs_importance=name in NEED_IMPORTANCE,
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
