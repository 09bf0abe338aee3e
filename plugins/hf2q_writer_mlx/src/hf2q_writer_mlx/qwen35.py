"""Qwen 3.5 and 3.6, dense and of experts. Source: mlx_lm/models/qwen3_5.py and qwen3_5_moe.py, `sanitize`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hf2q.types import TensorInfo
from hf2q_writer_mlx.names import Family, Mapped, Part, halves, ties_embeddings

NORMS = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
)
"""Norms that are centred on zero in a checkpoint, and on one in MLX."""
MODULES = frozenset(
    (
        "embed_tokens",
        "lm_head",
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "in_proj_qkv",
        "in_proj_z",
        "in_proj_b",
        "in_proj_a",
        "out_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
        "gate",
        "shared_expert_gate",
    )
)
"""Linear layers and embeddings, by the last part of their names."""
_EXPERT = re.compile(r"(.*)\.experts\.(?:(\d+)\.)?(gate_up_proj|gate_proj|up_proj|down_proj)(?:\.weight)?")


def names(tensor: TensorInfo, config: Mapping[str, Any]) -> Mapped:
    """What becomes of one tensor."""
    name = tensor.name
    if "mtp." in name:
        return "MTP, which mlx-lm does not run"
    if name.startswith("model.language_model"):
        name = name.replace("model.language_model", "language_model.model", 1)
    elif not name.startswith("language_model."):
        name = f"language_model.{name}"
    if name == "language_model.lm_head.weight" and ties_embeddings(config, default=False):
        return "the embedding is the output head"
    if found := _EXPERT.fullmatch(name):
        return _experts(*found.groups())
    module, _, last = name.rpartition(".")
    if module.endswith(".conv1d"):
        return (Part(name=name, change="channels_last"),)
    if name.endswith(NORMS):
        return (Part(name=name, change="plus_one"),)
    matrix = last == "weight" and module.rpartition(".")[2] in MODULES
    return (Part(name=name, kind="matrix" if matrix else "plain", keep=name.endswith("A_log")),)


def _experts(prefix: str, expert: str | None, part: str) -> Mapped:
    own = f"{prefix}.switch_mlp"
    if part == "gate_up_proj":
        return halves(own, ("gate_proj", "up_proj"))
    return (Part(name=f"{own}.{part}.weight", kind="matrix", expert=None if expert is None else int(expert)),)


def keys(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Nothing: what mlx-lm reads is what a checkpoint has."""
    return {}


FAMILY = Family(
    names=names,
    model_types=("qwen3_5", "qwen3_5_moe"),
    keys=keys,
    source="mlx_lm/models/qwen3_5.py, qwen3_5_moe.py",
)
