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
        "hf2q-arch-qwen3vl": "qwen3vl qwen3vlmoe",
        "hf2q-arch-bert": "bert nomic-bert",
    }
)
"""GGUF arch -> distribution."""

HF_ARCHITECTURES = _table(
    {
        "hf2q-arch-qwen35": "Qwen3_5ForConditionalGeneration Qwen3_5ForCausalLM Qwen3_5MoeForConditionalGeneration "
        "Qwen3_5MoeForCausalLM",
        "hf2q-arch-gemma4": "Gemma4ForConditionalGeneration Gemma4ForCausalLM Gemma4UnifiedForConditionalGeneration "
        "Gemma4AssistantForCausalLM Gemma4UnifiedAssistantForCausalLM",
        "hf2q-arch-deepseek4": "DeepseekV4ForCausalLM",
        "hf2q-arch-qwen3vl": "Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration",
        "hf2q-arch-bert": "BertModel BertForMaskedLM BertForSequenceClassification NomicBertModel",
    }
)
"""Class in config.json -> distribution."""

PROJECTORS = _table({"hf2q-arch-qwen3vl": "qwen3vl_merger", "hf2q-arch-gemma4": "gemma4v"})
"""clip.projector_type -> distribution."""

CODECS = _table(
    {
        "hf2q-quant-kquant": "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XS IQ3_XXS IQ4_NL IQ3_S IQ2_S "
        "IQ4_XS TQ1_0 TQ2_0 MXFP4"
    }
)
"""qtype -> distribution."""

RECIPES = _table(
    {
        "hf2q-quant-kquant": "q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q2_k_s q3_k q3_k_s q3_k_m q3_k_l q4_k q4_k_s q4_k_m q5_k "
        "q5_k_s q5_k_m q6_k iq4_nl iq4_xs iq3_xxs iq3_xs iq3_s iq3_m iq2_s iq2_m",
        "hf2q-quant-apex": "apex-quality apex-i-quality apex-balanced apex-i-balanced apex-compact apex-i-compact "
        "apex-mini",
    }
)
"""recipe, also by an alias -> distribution."""

WRITERS = _table({"hf2q-writer-mlx": "mlx"})
"""output format -> distribution."""
