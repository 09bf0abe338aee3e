"""Tiny random checkpoints of text model and tower together, the same bytes on every machine.

What is recorded under `reference/` was computed from them; its PROVENANCE.md says how.
"""

import json

import numpy as np

from hf2q.plugins import Plugins
from hf2q.testing.checkpoints import TinyCheckpoint, write_safetensors
from hf2q_arch_gemma4.hf2q_contract import CLIPPED, DENSE, KEYS_AS_VALUES, NEVER_USED, SCALARS, SMALL, TestProjector

IMAGES = {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]}
MARKS = ("<|image>", "<image|>", "<|image|>")
"""Before an image, after it, in its place: the last tokens of the vocabulary."""

POSITIONS = 48
VOCABULARY = 273


def pair(text, *, clipped, **changes):
    """config.json of both together."""
    sizes = {key: VOCABULARY for key in ("vocab_size", "vocab_size_per_layer_input") if key in text}
    text = {key: value for key, value in text.items() if key != "architectures"} | sizes
    vision = {**CLIPPED["vision_config"], "use_clipped_linears": clipped, "standardize": clipped}
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": {**text, "tie_word_embeddings": True, **changes},
        "vision_config": {**vision, "position_embedding_size": POSITIONS},
        "audio_config": None,
        "tie_word_embeddings": True,
    }


PAIRS = {
    "large": (pair(DENSE, clipped=True, use_bidirectional_attention="vision"), KEYS_AS_VALUES),
    "small": (pair(SMALL, clipped=False), NEVER_USED),
}
"""config.json by name, and tensors that the checkpoint does not have."""


def arrays(name):
    """Tensors by their names in a published checkpoint."""
    config, absent = PAIRS[name]
    clipped = config["vision_config"]["use_clipped_linears"]
    text = TinyCheckpoint(Plugins.load(), "gemma4", config, leave_out=absent)
    tower = TinyCheckpoint(
        Plugins.load(),
        "gemma4",
        {**config, "preprocessor_config": IMAGES},
        shapes={**TestProjector.shapes, **dict.fromkeys(SCALARS, ())},
        leave_out=() if clipped else TestProjector.leave_out,
        projector=True,
    )
    found = {f"model.language_model.{name}": array for name, array in text.arrays().items()}
    for name, array in tower.arrays().items():
        lower, upper = name.endswith("_min"), name.endswith("_max")
        found[f"model.{name}"] = (np.abs(array) + 0.5) * np.float32(upper - lower) if lower or upper else array
    return found


def write(folder, name, *, marks=MARKS):
    """A complete checkpoint."""
    config, absent = PAIRS[name]
    text = TinyCheckpoint(Plugins.load(), "gemma4", config, leave_out=absent)
    text.write(folder)
    write_safetensors(folder / "model.safetensors", arrays(name))
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGES))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first = config["text_config"]["vocab_size"] - len(marks)
    for text in [text for text, number in vocabulary.items() if number >= first]:
        del vocabulary[text]
    vocabulary |= {text: first + k for k, text in enumerate(marks)}
    like = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] += [{**like, "id": first + k, "content": text} for k, text in enumerate(marks)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    return folder
