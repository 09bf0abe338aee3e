"""Names by which the family is known. Imports nothing, so that plugin discovery stays cheap.

Source: llama.cpp, conversion/qwen.py, registrations of `Qwen3_5TextModel` and `Qwen3_5MoeTextModel`; transformers,
models/qwen3_5{,_moe}/configuration_*.py.
"""

DENSE, MOE = "qwen35", "qwen35moe"
DENSE_CLASSES = ("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM")
MOE_CLASSES = ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM")
DENSE_MODEL_TYPES = ("qwen3_5", "qwen3_5_text")
MOE_MODEL_TYPES = ("qwen3_5_moe", "qwen3_5_moe_text")

LINEAR, FULL, MTP, MTP_MORE = "linear_attention", "full_attention", "mtp", "mtp_more"
"""Kinds of blocks; `MTP_MORE` are MTP blocks after the first, which carry no projections of their own."""
