"""Which distribution provides what, for names that a user may ask for before installing it.

A table of names only: nothing here decides how a family or a type works.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


def _table(rows: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: distribution for distribution, names in rows.items() for name in names.split()})


ARCHS = _table(
    {
        "hf2q-arch-qwen35": "qwen35 qwen35moe",
        "hf2q-arch-gemma4": "gemma4",
        "hf2q-arch-deepseek4": "deepseek4",
        "hf2q-arch-qwen3vl": "qwen3vl",
        "hf2q-arch-bert": "bert nomic-bert",
    }
)
"""GGUF arch -> distribution."""

HF_ARCHITECTURES = _table(
    {
        "hf2q-arch-qwen35": "Qwen3_5ForConditionalGeneration Qwen3_5ForCausalLM Qwen3_5MoeForConditionalGeneration "
        "Qwen3_5MoeForCausalLM",
        "hf2q-arch-gemma4": "Gemma4ForConditionalGeneration Gemma4ForCausalLM",
        "hf2q-arch-deepseek4": "DeepseekV4ForCausalLM",
        "hf2q-arch-qwen3vl": "Qwen3VLForConditionalGeneration",
        "hf2q-arch-bert": "BertModel NomicBertModel",
    }
)
"""Class in config.json -> distribution."""

CODECS = _table({"hf2q-quant-kquant": "Q4_0 Q5_0 Q8_0 Q4_K Q6_K"})
"""qtype -> distribution."""

RECIPES = _table({"hf2q-quant-kquant": "q8_0 q4_0 q4_k_m q6_k"})
"""recipe -> distribution."""
