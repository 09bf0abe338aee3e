"""Gemma 4, dense and of experts. Source: mlx_lm/models/gemma4.py and gemma4_text.py, `sanitize`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hf2q.errors import ConfigError
from hf2q.types import TensorInfo
from hf2q_writer_mlx.names import Family, Mapped, Part, halves, text_config, ties_embeddings

MODULES = frozenset(
    (
        "embed_tokens",
        "embed_tokens_per_layer",
        "lm_head",
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
        "proj",
        "per_layer_input_gate",
        "per_layer_projection",
        "per_layer_model_projection",
    )
)
"""Linear layers and embeddings, by the last part of their names."""
OWN_KEYS = (".self_attn.k_proj.", ".self_attn.v_proj.", ".self_attn.k_norm.")
_LAYER = re.compile(r"layers\.(\d+)\.")


def names(tensor: TensorInfo, config: Mapping[str, Any]) -> Mapped:
    """What becomes of one tensor."""
    name, text = tensor.name, text_config(config)
    if "text_config" in config:  # the text model is a part of mlx-lm's
        name = name.removeprefix("model.").removeprefix("language_model.").removeprefix("model.")
        name = f"language_model.{name}" if name.startswith("lm_head") else f"language_model.model.{name}"
    if name.endswith("lm_head.weight") and ties_embeddings(config, default=True):
        return "the embedding is the output head"
    if any(part in name for part in OWN_KEYS) and _shares_keys(name, text):
        return "keys and values of a layer that uses those of another"
    if name.endswith(".experts.gate_up_proj"):
        return halves(f"{name.removesuffix('.gate_up_proj')}.switch_glu", ("gate_proj", "up_proj"))
    if name.endswith(".experts.down_proj"):
        return (Part(name=f"{name.removesuffix('.down_proj')}.switch_glu.down_proj.weight", kind="matrix"),)
    module, _, last = name.rpartition(".")
    matrix = last == "weight" and module.rpartition(".")[2] in MODULES
    return (Part(name=name, kind="matrix" if matrix else "plain"),)


def _shares_keys(name: str, text: Mapping[str, Any]) -> bool:
    found = _LAYER.search(name)
    layers, shared = text.get("num_hidden_layers"), text.get("num_kv_shared_layers") or 0
    if not isinstance(layers, int) or not isinstance(shared, int):
        raise ConfigError(f"num_hidden_layers is {layers!r}, num_kv_shared_layers {shared!r}, expected numbers")
    return found is not None and int(found[1]) >= layers - shared


def keys(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """mlx-lm looks for the size of the vocabulary outside text_config, and takes 262144 where there is none.

    Source: mlx_lm/models/gemma4.py, `ModelArgs`.
    """
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return {}
    size = text.get("vocab_size", config.get("vocab_size"))
    if isinstance(size, bool) or not isinstance(size, int):
        raise ConfigError(f"config.json: vocab_size is {size!r}, expected a number")
    return {"vocab_size": size}


FAMILY = Family(
    names=names,
    model_types=("gemma4", "gemma4_unified", "gemma4_text"),
    keys=keys,
    source="mlx_lm/models/gemma4.py, gemma4_text.py",
)
