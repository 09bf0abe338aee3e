"""Variants of the dense model that give no text: embedders, whose vectors are pooled, and rerankers, which are refused.

Source: llama.cpp, conversion/base.py, `TextModel._try_set_pooling_type` (sentence-transformers' modules);
conversion/qwen.py, `Qwen3Model._is_qwen3_reranker` (how rerankers are recognised); gguf-py/gguf/constants.py,
`PoolingType`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf2q.errors import ConfigError
from hf2q_arch_qwen3vl.families import CARD, MODULES

MEAN, CLS, LAST = 1, 2, 3
MODES = {
    "pooling_mode_mean_tokens": MEAN,
    "pooling_mode_cls_token": CLS,
    "pooling_mode_lasttoken": LAST,
    "mean": MEAN,
    "cls": CLS,
    "lasttoken": LAST,
}
"""The older spelling is a truth value for each mode, the newer one the value of ``pooling_mode``."""

NEUTRAL = ("Transformer", "Normalize")
"""Modules that need no place in GGUF: the model itself, and the unit length that every server gives."""


def read_pooling(config: Mapping[str, Any]) -> int | None:
    """GGUF's ``pooling_type``; None for a model that gives text.

    Errors: ConfigError for modules and modes that GGUF cannot express: they would be dropped silently.
    """
    found = None
    for module in config.get(MODULES) or ():
        kind = str(module["type"]).rpartition(".")[2]
        if kind in NEUTRAL:
            continue
        if kind != "Pooling" or found is not None:
            raise ConfigError(f"{MODULES} has a module {module['type']}, expected Transformer, one Pooling, Normalize")
        found = _mode(module["config"], f"{module['path']}/config.json")
    return found


def _mode(values: Any, where: str) -> int:
    values = values if isinstance(values, Mapping) else {}
    named = [key for key, value in values.items() if value is True and key.startswith("pooling_mode")]
    if not named and isinstance(values.get("pooling_mode"), str):
        named = [values["pooling_mode"]]
    if len(named) != 1 or named[0] not in MODES:
        raise ConfigError(f"{where} asks for {' and '.join(named) or 'no pooling'}, expected mean, cls or lasttoken")
    return MODES[named[0]]


def refuse_reranker(config: Mapping[str, Any]) -> None:
    """Rerankers score with two rows of the output head, which makes another model of them.

    Errors: ConfigError saying by which name the checkpoint was taken for one.
    """
    card = config.get(CARD) or {"folder": "", "text": ""}
    names = [card["folder"], config.get("_name_or_path"), config.get("model_type")]
    marks = ("qwen3-reranker", "qwen3-vl-reranker")
    hits = [name for name in names if isinstance(name, str) and any(mark in name.lower() for mark in marks)]
    hits += [f"# {mark}" for mark in marks if f"# {mark}" in card["text"].lower()]
    if hits:
        raise ConfigError(
            f"the checkpoint is a reranker by its name ({hits[0]!r}), and rerankers of this family are not supported",
            hint="llama.cpp's own converter writes them; a model that is none needs another name, and a card that does "
            "not say so",
        )
