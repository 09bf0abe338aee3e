"""What a tensor is in a mixture of experts, and where in the model: by its name alone.

Source: hf2q (the earlier program), src/quantize/ggml_quants/apex/{arches,rules}.rs, `classify_moe_tensor`,
`exp_region`, `shared_region`, `attn_region`.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["embedding", "output", "router", "shared", "expert", "other"]
Region: TypeAlias = Literal["edge", "near", "mid"]

EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
OUTPUTS = ("output.weight", "lm_head.weight")
EDGE_EXPERTS, NEAR_EXPERTS, EDGE_OTHERS = 5, 10, 3
"""Layers at each end of the model that are its edge, for experts and for all else, and that are near it."""


def role_of(name: str) -> Role:
    """The role of a tensor. Attention, recurrent layers and dense FFNs beside experts are ``other``."""
    if name in EMBEDDINGS:
        return "embedding"
    if name in OUTPUTS:
        return "output"
    if "ffn_gate_inp" in name:  # before shared experts: their gate is a router too
        return "router"
    if "_shexp.weight" in name:
        return "shared"
    if "_exps.weight" in name:
        return "expert"
    return "other"


def layer_of(name: str) -> int | None:
    """The number of the block that a tensor belongs to, None outside of blocks."""
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else None


def region_of(role: Role, layer: int | None, layers: int) -> Region:
    """The region of a tensor in a model of so many blocks. Only experts have a ``near``."""
    if layer is None:
        return "mid"
    ends = min(layer, layers - 1 - layer)  # distance to the nearer end
    edge = EDGE_EXPERTS if role in ("expert", "shared") else EDGE_OTHERS
    if ends < edge:
        return "edge"
    return "near" if role == "expert" and ends < NEAR_EXPERTS else "mid"
