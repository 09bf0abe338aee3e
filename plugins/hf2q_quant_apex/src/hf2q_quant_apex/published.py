"""Published models that have lists of types of their own, known by the sizes in their configuration.

A fingerprint is the SHA-256 of nine of these as canonical JSON. Of the 21 lists (three models, seven tiers) all equal
the tables of `tiers` but one, which was made with another type near the ends of the model.

Source: hf2q (the earlier program), src/quantize/ggml_quants/apex/fingerprint.rs, `fingerprint`;
data/apex-references/manifest.json; acceptance.rs, `KNOWN_NON_CANONICAL`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType

from hf2q.types import ModelFacts
from hf2q_quant_apex.tiers import Tier

MODELS: Mapping[str, str] = MappingProxyType(
    {
        "79ce3481c1eaf4ebdc833b01e9e970fca7c08824c080abc0f5f735dd97c440a1": "gemma4_26b",
        "9676b7abea7495049a8d6432a71caeac394fc7c4cbeb950b6ec0d27cd8c5c223": "qwen35a3b",
        "4d1512c7ae74ee2782901c568a6d0d848fe84dfe5f80e308863cb9ebd95919ee": "carnice_qwen36_mtp",
    }
)
"""Fingerprint -> the name that the lists of a model go by."""

MODEL_TYPES: Mapping[str, str] = MappingProxyType({"qwen35moe": "qwen3_5_moe_text", "gemma4": "gemma4_text"})
"""GGUF arch -> ``model_type`` of its configuration."""

DENSE_WIDTH = frozenset({"gemma4_text"})
"""Model types whose configurations have the width of a dense FFN too."""

OWN: Mapping[tuple[str, str], Tier] = MappingProxyType(
    {("qwen35a3b", "mini"): Tier(expert=("Q3_K", "IQ2_S", "IQ2_S"), shared=("Q5_K", "Q4_K"), other=("Q4_K", "Q3_K"))}
)
"""(model, tier) -> types that differ from the tier's."""


def fingerprint(facts: ModelFacts) -> str:
    """The fingerprint of a model, "" for an arch without published lists."""
    model_type = MODEL_TYPES.get(facts.arch)
    if model_type is None:
        return ""
    fields = {
        "hidden_size": facts.n_embd,
        "intermediate_size": facts.n_ff if model_type in DENSE_WIDTH else 0,
        "model_type": model_type,
        "moe_intermediate_size": facts.n_ff_expert,
        "mtp_num_hidden_layers": facts.n_mtp,
        "num_attention_heads": facts.n_head,
        "num_experts": facts.n_expert,
        "num_hidden_layers": facts.n_layer - facts.n_mtp,
        "num_key_value_heads": facts.n_head_kv,
    }
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
