"""How the vectors of a text's tokens become one: from the side files of sentence-transformers.

Source: llama.cpp, conversion/base.py, `TextModel._try_set_pooling_type`; sentence-transformers, models/Pooling.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf2q.config import Config
from hf2q.errors import ConfigError
from hf2q_arch_bert.families import CLS, LAST, MEAN, MODULES

FLAGS = {"pooling_mode_mean_tokens": MEAN, "pooling_mode_cls_token": CLS, "pooling_mode_lasttoken": LAST}
"""The older spelling: a truth value for each mode."""

MODES = {"mean": MEAN, "cls": CLS, "lasttoken": LAST}
"""The newer spelling: the value of ``pooling_mode``."""

UNSUPPORTED = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")

NEUTRAL = ("Transformer", "Normalize", "Dropout")
"""Modules that need no place in GGUF: the model itself, the unit length that every server gives, nothing at all."""

HARMLESS = {
    "word_embedding_dimension": "the width of the model, which config.json states",
    "embedding_dimension": "the width of the model, which config.json states",
}


def read_pooling(modules: Any) -> int | None:
    """The ``pooling_type`` that `modules`, as `hf2q.convert.sidefiles` reads them, ask for; None when they are absent.

    Errors: ConfigError naming a module or a mode that GGUF cannot express: it would be dropped silently.
    """
    found: int | None = None
    for module in modules or ():
        kind = str(module["type"]).rpartition(".")[2]
        if kind in NEUTRAL:
            continue
        if kind != "Pooling":
            raise ConfigError(
                f"{MODULES} has a module {module['type']}: GGUF has no place for a {kind} layer, and vectors would be "
                "others without it",
                hint="convert a model whose modules are Transformer, Pooling and Normalize",
            )
        if found is not None:
            raise ConfigError(f"{MODULES} has two Pooling modules, expected one")
        found = _mode(module["config"], f"{module['path']}/config.json")
    return found


def _mode(values: Any, where: str) -> int:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} is missing, expected the pooling mode of the model")
    c = Config(values, where)
    c.expect("include_prompt", (True,), "GGUF cannot leave the tokens of a prompt out of the mean")
    named = [mode for key, mode in FLAGS.items() if c.flag(key, False)]
    named += [0 for key in UNSUPPORTED if c.flag(key, False)]
    mode = c.raw("pooling_mode")
    if mode is not None and not named:
        named = [MODES.get(part, 0) if isinstance(part, str) else 0 for part in _parts(mode)]
    c.done(HARMLESS)
    if len(named) != 1 or named[0] == 0:
        asked = [key for key, value in values.items() if value is True and key.startswith("pooling_mode")]
        shown = ", ".join(asked) if asked else f"pooling_mode = {mode!r}"
        raise ConfigError(f"{where} asks for {shown}, expected exactly one of mean, cls and lasttoken")
    return named[0]


def _parts(mode: Any) -> list[Any]:
    return list(mode) if isinstance(mode, list) else [mode]
