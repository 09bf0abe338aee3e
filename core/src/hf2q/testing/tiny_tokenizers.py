"""Tiny tokenizers of the kinds that are no byte-level BPE, for the checkpoints of `hf2q.testing.checkpoints`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf2q.errors import UsageError

SPACE = "\u2581"
NAMED = {"pad": "<pad>", "eos": "<eos>", "bos": "<bos>", "unk": "<unk>", "mask": "<mask>"}
TURN = ("<|turn>", "<turn|>")
MERGES = ((SPACE, "t"), ("h", "e"), (f"{SPACE}t", "he"))
BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
FILLING = 0x4E00
"""First of the characters that fill a vocabulary up."""


def write_gemma4_tokenizer(folder: Path, n_vocab: int) -> None:
    """Write BPE over text whose spaces are U+2581: special tokens, 256 bytes, a few letters and merges.

    Errors: UsageError when the vocabulary has no room for them.
    """
    texts = [*NAMED.values(), *TURN, *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, "t", "h", "e"]
    texts += [left + right for left, right in MERGES]
    _expect_room(n_vocab, len(texts))
    texts += [chr(FILLING + i) for i in range(n_vocab - len(texts))]
    special = [*NAMED.values(), *TURN]
    begin = {"SpecialToken": {"id": NAMED["bos"], "type_id": 0}}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(special),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": _template([begin, *_text("A")], [begin, *_text("A"), begin, *_text("B")], special),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": NAMED["unk"],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {text: number for number, text in enumerate(texts)},
            "merges": [list(pair) for pair in MERGES],
        },
    }
    names = {f"{role}_token": text for role, text in NAMED.items()}
    config = {"tokenizer_class": "GemmaTokenizer", **names, "sot_token": TURN[0], "eot_token": TURN[1]}
    _write(folder, tokenizer, config)


def _added(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Special tokens, numbered from 0."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": number, "content": text, **flags} for number, text in enumerate(texts)]


def _text(name: str) -> list[dict[str, Any]]:
    return [{"Sequence": {"id": name, "type_id": 0}}]


def _template(single: list[dict[str, Any]], pair: list[dict[str, Any]], special: Sequence[str]) -> dict[str, Any]:
    used = {piece["SpecialToken"]["id"] for piece in pair if "SpecialToken" in piece}
    named = {text: {"id": text, "ids": [special.index(text)], "tokens": [text]} for text in sorted(used)}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": named}


def _expect_room(n_vocab: int, needed: int) -> None:
    if n_vocab < needed:
        raise UsageError(
            f"a vocabulary of {n_vocab} has no room for the {needed} tokens of a tiny tokenizer",
            hint=f"set vocab_size to {needed} or more in the tiny config",
        )


def _write(folder: Path, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def write_bert_tokenizer(folder: Path, n_vocab: int) -> None:
    """Write WordPiece with BERT's own cutting: special tokens, letters and digits, alone and within words.

    Errors: UsageError when the vocabulary has no room for them.
    """
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    texts = [*BERT.values(), *letters, *(f"##{letter}" for letter in letters), "the", "##ing"]
    _expect_room(n_vocab, len(texts))
    texts += [chr(FILLING + i) for i in range(n_vocab - len(texts))]
    cls, sep = ({"SpecialToken": {"id": BERT[role], "type_id": 0}} for role in ("cls", "sep"))
    first, second = ({"Sequence": {"id": name, "type_id": place}} for place, name in enumerate("AB"))
    ends = {
        BERT[role]: {"id": BERT[role], "ids": [texts.index(BERT[role])], "tokens": [BERT[role]]}
        for role in ("cls", "sep")
    }
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": text, **plain} for number, text in enumerate(BERT.values())],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [cls, first, sep],
            "pair": [cls, first, sep, second, sep],
            "special_tokens": ends,
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": BERT["unk"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {text: number for number, text in enumerate(texts)},
        },
    }
    config = {"tokenizer_class": "BertTokenizer", **{f"{role}_token": text for role, text in BERT.items()}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
