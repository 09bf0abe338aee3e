"""Names by which the family is known. Imports nothing, so that plugin discovery stays cheap.

Source: llama.cpp, conversion/gemma.py, registrations of `Gemma4Model`, `Gemma4UnifiedModel`, `Gemma4AssistantModel` and
`Gemma4VisionAudioModel`; transformers, models/gemma4/configuration_gemma4.py.
"""

ARCH = "gemma4"
CLASSES = ("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM")
UNIFIED = ("Gemma4UnifiedForConditionalGeneration",)
"""Models that images and sound enter without towers; their text model is one of the family."""

DRAFTERS = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
"""Relatives that are recognised, and refused by name."""

MODEL_TYPES = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
UNIFIED_TYPES = ("gemma4_unified", "gemma4_unified_text")
PROJECTOR = "gemma4v"

SLIDING, FULL = "sliding_attention", "full_attention"
SHARED = "_shared_kv"
SLIDING_SHARED, FULL_SHARED = SLIDING + SHARED, FULL + SHARED
"""Kinds of blocks; the shared ones attend to the keys and values of an earlier block of their kind."""
