"""Tiny random checkpoints of text model and tower together, the same bytes on every machine.

The goldens beside these tests were recorded from them; see data/PROVENANCE.md.
"""

import json

from hf2q.plugins import Plugins
from hf2q.testing.checkpoints import TinyCheckpoint, write_safetensors
from hf2q_arch_qwen3vl.hf2q_contract import DENSE, MOE, MOE_SHAPES, TEXT, TOWER, TOWER_SHAPES, VISION

IMAGES = TOWER["preprocessor_config"]
WIDE = {  # rows that K quants divide
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 64,
}


def wide(config, **text):
    """The same with a text model of 256 columns."""
    return {
        **config,
        "text_config": {**config["text_config"], **WIDE, **text},
        "vision_config": {**VISION, "out_hidden_size": 256},
    }


VARIANTS = {
    "dense": ("qwen3vl", DENSE),
    "dense-untied": ("qwen3vl", {**DENSE, "tie_word_embeddings": False}),
    "dense-no-taps": ("qwen3vl", {**DENSE, "vision_config": {**VISION, "deepstack_visual_indexes": []}}),
    "dense-wide": ("qwen3vl", wide(DENSE)),
    "moe": ("qwen3vlmoe", MOE),
    "moe-wide": ("qwen3vlmoe", wide(MOE, moe_intermediate_size=256, num_experts=4)),
    "yarn": (
        "qwen3vl",
        {
            **DENSE,
            "text_config": {
                **TEXT,
                "rope_parameters": {
                    **TEXT["rope_parameters"],
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                },
            },
        },
    ),
}
"""Arch and config.json by name."""

PREFIXES = {"": "model.language_model.", "visual.": "model.visual.", "lm_head.": "lm_head."}


def prefixed(name, prefixes=PREFIXES):
    """The name of a tensor in a published checkpoint, from the one in a catalog."""
    start = next((part for part in prefixes if part and name.startswith(part)), "")
    return prefixes[start] + name[len(start) :]


def write(folder, arch, config, *, images=IMAGES, prefixes=PREFIXES, tower=True, extra=None):
    """A complete checkpoint in two files, the tower in the second; `extra` are further files by name, for JSON."""
    plugins = Plugins.load()
    text = TinyCheckpoint(plugins, arch, config, shapes=MOE_SHAPES if arch == "qwen3vlmoe" else None)
    text.write(folder)
    (folder / "model.safetensors").unlink()
    parts = [text]
    if tower:
        both = {**config, "preprocessor_config": IMAGES}
        parts.append(TinyCheckpoint(plugins, arch, both, shapes=TOWER_SHAPES, projector=True))
    weight_map = {}
    for k, part in enumerate(parts, 1):
        arrays = {prefixed(name, prefixes): array for name, array in part.arrays().items()}
        file = f"model-{k:05}-of-{len(parts):05}.safetensors"
        write_safetensors(folder / file, arrays)
        weight_map |= dict.fromkeys(arrays, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    if images is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(images))
    for name, content in (extra or {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder
