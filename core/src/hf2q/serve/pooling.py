"""From the vectors of a text's tokens to one: what GGUF's ``pooling_type`` names. Pure functions on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.errors import LoadError, UsageError

if TYPE_CHECKING:
    from hf2q.types import Float32

TYPES = ("none", "mean", "cls", "last", "rank")
"""Names by GGUF's number. Source: llama.cpp, include/llama.h, `llama_pooling_type`."""


def mean(states: Float32) -> Float32:
    """The mean of all tokens' states, special ones among them."""
    found: Float32 = np.asarray(np.mean(states, axis=0, dtype=np.float64), np.float32)
    return found


POOLINGS: Mapping[str, Callable[[Float32], Float32]] = {
    "mean": mean,
    "cls": lambda states: states[0].copy(),
    "last": lambda states: states[-1].copy(),
}
"""From states (T, C) of a text, its special tokens among them, to one vector (C,), a copy."""


def stated(metadata: Mapping[str, Any], arch: str) -> str | None:
    """The name of the pooling that a file states, None when it states none. Errors: LoadError for another number."""
    key = f"{arch}.pooling_type"
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(TYPES):
        raise LoadError(f"{key} is {value!r}, expected a number from 0 to {len(TYPES) - 1}")
    return TYPES[value]


def choose(asked: str | None, found: str | None, key: str) -> str:
    """The pooling to use: what the caller asks for, else what the file states under `key`.

    Errors: UsageError for a name that is none, and when neither gives one vector for a text.
    """
    names = ", ".join(POOLINGS)
    if asked is not None:
        if asked not in POOLINGS:
            raise UsageError(f"pooling {asked!r} is not known, expected one of {names}")
        return asked
    if found is not None and found in POOLINGS:
        return found
    says = f"{key} is missing" if found is None else f"{key} is {TYPES.index(found)}, {found}"
    raise UsageError(
        f"the model file does not say how the vectors of tokens become one ({says})",
        hint=f"choose one of {names} with pooling (--pooling); the model's page says which it was trained with",
    )


def unit(vectors: Float32) -> Float32:
    """Vectors (N, C) with Euclidean length 1; those of length 0 stay."""
    lengths = np.sqrt(np.sum(vectors.astype(np.float64) ** 2, axis=-1, keepdims=True))
    scaled: Float32 = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return scaled
