"""Names by which the family is known. Imports nothing, so that plugin discovery stays cheap.

Source: llama.cpp, conversion/qwen3vl.py, registrations of `Qwen3VLTextModel`, `Qwen3VLMoeTextModel` and
`Qwen3VLVisionModel`; gguf-py/gguf/constants.py, `VisionProjectorType`; transformers,
models/qwen3_vl{,_moe}/configuration_*.py.
"""

DENSE, MOE, PROJECTOR = "qwen3vl", "qwen3vlmoe", "qwen3vl_merger"
DENSE_CLASSES, MOE_CLASSES = ("Qwen3VLForConditionalGeneration",), ("Qwen3VLMoeForConditionalGeneration",)
DENSE_MODEL_TYPES = ("qwen3_vl", "qwen3_vl_text")
MOE_MODEL_TYPES = ("qwen3_vl_moe", "qwen3_vl_moe_text")

MODULES, CARD = "modules.json", "README.md"
"""Files beside config.json that say what else a checkpoint is; see `hf2q.convert.sidefiles`."""

TEXT = "text"
"""The one kind of blocks of a text model."""

MAX_TAPS = 16
PLAIN, TAPS = "vision", tuple(f"vision_tap_{k}" for k in range(MAX_TAPS))
"""Kinds of blocks of a tower: without and with a deepstack merger, of which `TAPS` tells the number in the checkpoint.

GGUF names a merger by the block after which it taps, a checkpoint by its place in ``deepstack_visual_indexes``.
"""

DEFAULT_TAPS = (8, 16, 24)
"""Of Qwen 3-VL when config.json does not say: transformers, models/qwen3_vl/configuration_qwen3_vl.py."""


def taps_by_default(model_type: object) -> tuple[int, ...]:
    """The deepstack blocks of a model whose config.json names none; Qwen 3.5 and later have none."""
    return DEFAULT_TAPS if isinstance(model_type, str) and model_type.startswith("qwen3_vl") else ()
