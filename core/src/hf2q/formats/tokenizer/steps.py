"""The steps of a ``tokenizer.json`` (normalizer, pre_tokenizer, decoder), taken apart without judging them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

NUMERIC = r"\p{N}"
"""What a ``Digits`` step splits by. Source: tokenizers `pre_tokenizers/digits.rs`, `char::is_numeric`."""

SPACE = "\u2581"
"""What SentencePiece and its heirs write for a space."""


def flatten(step: object, key: str) -> list[dict[str, Any]]:
    """The steps of a possibly nested ``Sequence``, in order; an entry that is no object becomes an unknown step."""
    if step is None:
        return []
    if not isinstance(step, dict):
        return [{"type": None}]
    inner = step.get(key)
    if step.get("type") == "Sequence" and isinstance(inner, list):
        return [found for entry in inner for found in (flatten(entry, key) or [{"type": None}])]
    return [step]


def split_regex(step: Mapping[str, Any]) -> str | None:
    """The regular expression whose matches `step` isolates, None when it does something else."""
    if step.get("type") == "Digits":
        return NUMERIC if step.get("individual_digits") is True else NUMERIC + "+"
    pattern = step.get("pattern")
    if step.get("type") != "Split" or not isinstance(pattern, dict) or set(pattern) != {"Regex"}:
        return None
    if (step.get("behavior"), bool(step.get("invert"))) != ("Isolated", False):
        return None
    regex = pattern["Regex"]
    return regex if isinstance(regex, str) else None


def replaces(step: Mapping[str, Any], old: str, new: str) -> bool:
    """Whether `step` replaces the text `old` by `new`, and does nothing else."""
    return step.get("type") == "Replace" and step.get("pattern") == {"String": old} and step.get("content") == new


def splits_at_spaces(step: Mapping[str, Any]) -> bool:
    """Whether `step` cuts after spaces: without effect where the normalizer has left none."""
    return (step.get("type"), step.get("pattern")) == ("Split", {"String": " "})


def compact(value: object) -> str:
    """JSON of `value` for a message, at most some 2,000 characters."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 2000 else text[:2000] + "…"
