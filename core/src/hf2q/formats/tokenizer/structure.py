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
from hf2q.formats.tokenizer.files import member
from hf2q.formats.tokenizer.models import BERT, GEMMA4, gguf_model
from hf2q.formats.tokenizer.steps import SPACE, compact, flatten, replaces, split_regex, splits_at_spaces
from hf2q.types import PreTokenizer

_SIMILAR = ("model", "split", "digits", "normalizer", "ignore_merges", "add_prefix_space", "n_tokens")


class Structure(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a ``tokenizer.json`` that decides where text is cut, in the words of `PreTokenizer`."""

    model: str
    split: tuple[str, ...] = ()
    digits: bool = False
    normalizer: str = ""
    ignore_merges: bool = False
    add_prefix_space: bool = False
    n_tokens: int = 0


def pick_pre_tokenizer(
    tokenizer: Mapping[str, Any], known: Sequence[PreTokenizer], pre: str | None, where: str
) -> PreTokenizer:
    """The record that `tokenizer` (a parsed ``tokenizer.json``) matches, or the one named `pre` without matching.

    Errors: ConfigError when nothing matches, showing what was found, or when `pre` is not the name of a known one.
    """
    if pre is not None:
        return _named(pre, known, gguf_model(tokenizer, where), where)
    found = find_structure(tokenizer, where)
    if found is None:
        raise ConfigError(_unknown(tokenizer, where), hint=_pre_hint(known))
    for record in known:
        if not _differences(found, record):
            return record
    near = _nearest(found, known)
    raise ConfigError(_unknown(tokenizer, where) + (f"; nearest known: {near}" if near else ""), hint=_pre_hint(known))


def find_structure(tokenizer: Mapping[str, Any], where: str) -> Structure | None:
    """The structure of a parsed ``tokenizer.json``; None when it has a step that `Structure` cannot express."""
    kind = gguf_model(tokenizer, where)
    normalizers = flatten(tokenizer.get("normalizer"), "normalizers")
    steps = flatten(tokenizer.get("pre_tokenizer"), "pretokenizers")
    model = member(tokenizer, "model", dict, where, {})
    vocab = model.get("vocab")
    common: dict[str, Any] = {"model": kind, "n_tokens": len(vocab) if isinstance(vocab, dict) else 0}
    if kind == BERT:
        return Structure(**common, normalizer="BertNormalizer") if _is_bert(normalizers, steps) else None
    common["ignore_merges"] = member(model, "ignore_merges", bool, f"{where}: model", False)
    if kind == GEMMA4:
        plain = len(normalizers) == 1 and replaces(normalizers[0], " ", SPACE)
        return Structure(**common, normalizer="Replace") if plain and all(map(splits_at_spaces, steps)) else None
    return _byte_level(normalizers, steps, common)


def _byte_level(
    normalizers: list[dict[str, Any]], steps: list[dict[str, Any]], common: Mapping[str, Any]
) -> Structure | None:
    names = [entry.get("type") for entry in normalizers]
    if names not in ([], ["NFC"]) or not steps:
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
        regex = split_regex(step)
        if regex is None:
            return None
        split.append(regex)
    if last.get("use_regex", True):
        split.append(SPLIT_REGEX)
    return Structure(
        **common,
        split=tuple(split),
        digits=digits,
        normalizer="NFC" if names else "",
        add_prefix_space=bool(last.get("add_prefix_space", True)),
    )


def _is_bert(normalizers: list[dict[str, Any]], steps: list[dict[str, Any]]) -> bool:
    """Whether text is cleaned and cut as GGUF's ``bert`` does it.

    Source: llama.cpp src/llama-vocab.cpp, `llm_tokenizer_wpm_session::preprocess`.
    """
    if [step.get("type") for step in normalizers] != ["BertNormalizer"]:
        return False
    options = normalizers[0]
    always = options.get("clean_text", True) is True and options.get("handle_chinese_chars", True) is True
    return always and [step.get("type") for step in steps] == ["BertPreTokenizer"]


def _named(pre: str, known: Sequence[PreTokenizer], model: str, where: str) -> PreTokenizer:
    named = [record for record in known if record.name == pre]
    for record in named:
        if record.model == model:
            return record
    if named:
        raise ConfigError(f"pre-tokenizer {pre!r} is one of {named[0].model} tokenizers, {where} is a {model} one")
    names = listing({record.name for record in known})
    raise ConfigError(f"unknown pre-tokenizer {pre!r}", hint=f"--pre takes one of: {names}")


def _differences(found: Structure, record: PreTokenizer) -> list[str]:
    differing = [name for name in _SIMILAR if getattr(found, name) != getattr(record, name)]
    if not record.n_tokens and "n_tokens" in differing:
        differing.remove("n_tokens")
    return differing


def _nearest(found: Structure, known: Sequence[PreTokenizer]) -> str:
    ranked = sorted((len(_differences(found, record)), record.name, _differences(found, record)) for record in known)
    return ", ".join(f"{name} (differs in {', '.join(parts)})" for _, name, parts in ranked[:3])


def _unknown(tokenizer: Mapping[str, Any], where: str) -> str:
    model = tokenizer.get("model")
    table = model if isinstance(model, dict) else {}
    shown: dict[str, Any] = {"normalizer": tokenizer.get("normalizer"), "pre_tokenizer": tokenizer.get("pre_tokenizer")}
    shown |= {key: table[key] for key in ("type", "byte_fallback") if table.get(key)}
    shown["ignore_merges"] = table.get("ignore_merges", False)
    return f"{where}: no known pre-tokenizer has this structure: {compact(shown)}"


def _pre_hint(known: Sequence[PreTokenizer]) -> str:
    names = listing({record.name for record in known}) or "none, no family plugin is loaded"
    return f"--pre NAME states the pre-tokenizer; known names: {names}"
