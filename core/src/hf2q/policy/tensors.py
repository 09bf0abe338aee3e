"""Which tensors may be quantized, and the role of each in a mix, by name and shape alone.

Source: llama.cpp, src/llama-quant.cpp, `tensor_allows_quantization` and `tensor_get_category`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from hf2q.types import Shape

Role: TypeAlias = Literal[
    "output",
    "token_embd",
    "attn_v",
    "attn_k",
    "attn_q",
    "attn_output",
    "ffn_up",
    "ffn_gate",
    "ffn_down",
    "other",
]

OUTPUT = "output.weight"
PER_LAYER_EMBEDDING = "per_layer_token_embd.weight"
EMBEDDINGS = ("token_embd.weight", PER_LAYER_EMBEDDING)

KEPT = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
)
"""Parts of names of tensors that are never quantized: small, or too sensitive."""

KEPT_WHOLE = ("position_embd.weight", "token_types.weight")

KEPT_BY_ARCH: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "glm5-next": (
            "hc_",
            "indexer.attn_q_b",
            "indexer.attn_k",
            "indexer.proj",
            "indexer_compressor_gate",
            "indexer_compressor_ape",
            "ssm_f_a.weight",
            "ssm_f_b.weight",
            "ssm_g_a.weight",
            "ssm_g_b.weight",
            "ssm_beta.weight",
            "attn_kv_a_mqa.weight",
            "attn_k_b.weight",
            "attn_v_b.weight",
        )
    }
)
"""The same for single archs."""

ROLES: tuple[tuple[Role, tuple[str, ...]], ...] = (
    ("attn_v", ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")),
    ("attn_k", ("attn_k.weight",)),
    ("attn_q", ("attn_q.weight",)),
    ("attn_output", ("attn_output.weight",)),
    ("ffn_up", ("ffn_up",)),
    ("ffn_gate", ("ffn_gate",)),
    ("ffn_down", ("ffn_down",)),
)
"""First match decides. Fused projections that hold values count as values, as in the reference."""


def why_kept(name: str, shape: Shape, arch: str = "") -> str:
    """Why a tensor is never quantized, by its name and shape (numpy order); "" when it may be."""
    sizes = list(shape)
    while len(sizes) > 1 and sizes[0] == 1:  # ggml does not count outer sizes of 1
        del sizes[0]
    if len(sizes) < 2:
        return "one-dimensional"
    if not name.endswith("weight"):
        return "not a weight"
    if name in KEPT_WHOLE:
        return f"{name} is never quantized"
    part = next((part for part in (*KEPT, *KEPT_BY_ARCH.get(arch, ())) if part in name), "")
    return f"{part} is never quantized" if part else ""


def role_of(name: str) -> Role:
    """The role of a tensor in a mix, by its name."""
    if name == OUTPUT:
        return "output"
    if name in EMBEDDINGS:
        return "token_embd"
    return next((role for role, parts in ROLES if any(part in name for part in parts)), "other")
