"""Which registered pre-tokenizer a ``tokenizer.json`` amounts to, told by its steps and not by what it encodes.

GGUF stores the name of a pre-tokenizer; every reader holds the regular expressions behind that name. So the steps found
here must be the steps behind the name, or encoding would differ silently: whatever is not recognised is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hf2q.errors import ConfigError, listing
from hf2q.formats.tokenizer.alphabet import SPLIT_REGEX
from hf2q.formats.tokenizer.files import expect, member
from hf2q.types import PreTokenizer

NUMERIC = r"\p{N}"
"""What a ``Digits`` step splits by. Source: tokenizers `pre_tokenizers/digits.rs`, `char::is_numeric`."""

_SIMILAR = ("split", "digits", "normalizer", "ignore_merges", "add_prefix_space")


class Structure(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a ``tokenizer.json`` that decides where text is cut, in the words of `PreTokenizer`."""

    split: tuple[str, ...]
    digits: bool
    normalizer: str
    ignore_merges: bool
    add_prefix_space: bool


def pick_pre_tokenizer(
    tokenizer: Mapping[str, Any], known: Sequence[PreTokenizer], pre: str | None, where: str
) -> PreTokenizer:
    """The record that `tokenizer` (a parsed ``tokenizer.json``) matches, or the one named `pre` without matching.

    Errors: ConfigError when nothing matches, showing what was found, or when `pre` is not the name of a known one.
    """
    if pre is not None:
        for record in known:
            if record.name == pre:
                return record
        names = listing({record.name for record in known})
        raise ConfigError(f"unknown pre-tokenizer {pre!r}", hint=f"--pre takes one of: {names}")
    found = find_structure(tokenizer, where)
    if found is None:
        raise ConfigError(_unknown(tokenizer, where), hint=_pre_hint(known))
    for record in known:
        if record.model == "gpt2" and not _differences(found, record):
            return record
    near = _nearest(found, known)
    raise ConfigError(_unknown(tokenizer, where) + (f"; nearest known: {near}" if near else ""), hint=_pre_hint(known))


def find_structure(tokenizer: Mapping[str, Any], where: str) -> Structure | None:
    """The structure of a parsed ``tokenizer.json``; None when it has a step that `Structure` cannot express."""
    normalizer = _normalizer(tokenizer.get("normalizer"))
    steps = _flatten(tokenizer.get("pre_tokenizer"), "pretokenizers")
    model = member(tokenizer, "model", dict, where, {})
    if normalizer is None or not steps:
        return None
    *splitting, last = steps
    if last.get("type") != "ByteLevel":
        return None
    digits = False
    split: list[str] = []
    for place, step in enumerate(splitting):
        if place == 0 and step.get("type") == "Digits" and step.get("individual_digits") is True:
            digits = True
            continue
        regex = _split_regex(step)
        if regex is None:
            return None
        split.append(regex)
    if last.get("use_regex", True):
        split.append(SPLIT_REGEX)
    return Structure(
        split=tuple(split),
        digits=digits,
        normalizer=normalizer,
        ignore_merges=member(model, "ignore_merges", bool, f"{where}: model", False),
        add_prefix_space=bool(last.get("add_prefix_space", True)),
    )


def check_model(tokenizer: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The ``model`` object, checked to be a byte-level BPE without anything that GGUF's ``gpt2`` cannot express.

    Errors: ConfigError naming the key.
    """
    model = expect(tokenizer.get("model"), dict, f"{where}: model")
    name = model.get("type", "BPE")
    if name != "BPE":
        raise ConfigError(
            f"{where}: model.type is {name!r}, expected 'BPE'", hint="only byte-level BPE tokenizers are supported"
        )
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            raise ConfigError(f"{where}: model.{key} is {model[key]!r}, which a GGUF tokenizer cannot express")
    decoders = _flatten(tokenizer.get("decoder"), "decoders")
    if [step.get("type") for step in decoders] != ["ByteLevel"]:
        raise ConfigError(f"{where}: decoder is {_compact(tokenizer.get('decoder'))}, expected ByteLevel")
    return model


def _flatten(step: object, key: str) -> list[dict[str, Any]]:
    """The steps of a possibly nested ``Sequence``, in order; an entry that is no object becomes an unknown step."""
    if step is None:
        return []
    if not isinstance(step, dict):
        return [{"type": None}]
    inner = step.get(key)
    if step.get("type") == "Sequence" and isinstance(inner, list):
        return [found for entry in inner for found in (_flatten(entry, key) or [{"type": None}])]
    return [step]


def _normalizer(step: object) -> str | None:
    names = [entry.get("type") for entry in _flatten(step, "normalizers")]
    if not names:
        return ""
    return "NFC" if names == ["NFC"] else None


def _split_regex(step: Mapping[str, Any]) -> str | None:
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


def _differences(found: Structure, record: PreTokenizer) -> list[str]:
    return [name for name in _SIMILAR if getattr(found, name) != getattr(record, name)]


def _nearest(found: Structure, known: Sequence[PreTokenizer]) -> str:
    ranked = sorted((len(_differences(found, record)), record.name, _differences(found, record)) for record in known)
    return ", ".join(f"{name} (differs in {', '.join(parts)})" for _, name, parts in ranked[:3])


def _unknown(tokenizer: Mapping[str, Any], where: str) -> str:
    model = tokenizer.get("model")
    shown = {
        "normalizer": tokenizer.get("normalizer"),
        "pre_tokenizer": tokenizer.get("pre_tokenizer"),
        "ignore_merges": model.get("ignore_merges", False) if isinstance(model, dict) else None,
    }
    return f"{where}: no known pre-tokenizer has this structure: {_compact(shown)}"


def _compact(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 2000 else text[:2000] + "…"


def _pre_hint(known: Sequence[PreTokenizer]) -> str:
    names = listing({record.name for record in known}) or "none, no family plugin is loaded"
    return f"--pre NAME states the pre-tokenizer; known names: {names}"
