"""Which of GGUF's tokenizer models a ``tokenizer.json`` is, and whether that can express all it says.

gpt2    BPE over bytes, written in the byte-level alphabet
gemma4  BPE over text whose spaces are U+2581; what the vocabulary lacks is spelled in bytes (``<0x0A>``)
bert    WordPiece
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hf2q.errors import ConfigError
from hf2q.formats.tokenizer.files import expect
from hf2q.formats.tokenizer.steps import SPACE, compact, flatten, replaces

GPT2, GEMMA4, BERT = "gpt2", "gemma4", "bert"

BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")
"""A token that stands for one byte. Source: llama.cpp gguf-py/gguf/vocab.py, `LlamaHfVocab.get_token_type`."""

BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""As byte fallback looks them up. Source: tokenizers `models/bpe/model.rs`, `merge_word`."""

VISIBLE = frozenset(
    ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>']
)
"""Control tokens of a ``gemma4`` that are written USER_DEFINED, so that readers show them to the parser of a reply.

Source: llama.cpp conversion/gemma.py, `Gemma4Model.set_vocab`.
"""

MAX_WORD = 100
"""Characters of a word beyond which WordPiece gives up: the one value in use, for which GGUF has no key."""

_BPE_ONLY = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")


def gguf_model(tokenizer: Mapping[str, Any], where: str) -> str:
    """``gpt2``, ``gemma4`` or ``bert``. Errors: ConfigError for other models, showing the type."""
    model = expect(tokenizer.get("model"), dict, f"{where}: model")
    # files of the first versions of the library do not name the type
    name = model.get("type", "WordPiece" if "max_input_chars_per_word" in model else "BPE")
    if name == "WordPiece":
        return BERT
    if name == "BPE":
        return GEMMA4 if model.get("byte_fallback") else GPT2
    raise ConfigError(
        f"{where}: model.type is {name!r}, expected 'BPE' or 'WordPiece'",
        hint="byte-level BPE, BPE with byte fallback and WordPiece tokenizers are supported",
    )


def check_model(tokenizer: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The ``model`` object, checked to hold nothing that the GGUF model of its kind cannot express.

    Errors: ConfigError naming the key.
    """
    model: dict[str, Any] = tokenizer["model"] if isinstance(tokenizer.get("model"), dict) else {}
    kind = gguf_model(tokenizer, where)
    if kind == BERT:
        _expect_value(model, "continuing_subword_prefix", "##", where)
        _expect_value(model, "max_input_chars_per_word", MAX_WORD, where)
    for key in _BPE_ONLY if kind != BERT else ():
        if model.get(key):
            raise ConfigError(f"{where}: model.{key} is {model[key]!r}, which a GGUF tokenizer cannot express")
    check, expected = {
        GPT2: (_byte_level, "ByteLevel"),
        GEMMA4: (_replace_and_fall_back, "Replace of U+2581 by a space, ByteFallback, Fuse"),
        BERT: (_word_piece, "WordPiece with the prefix '##'"),
    }[kind]
    decoder = tokenizer.get("decoder")
    if not check(flatten(decoder, "decoders")):
        raise ConfigError(f"{where}: decoder is {compact(decoder)}, expected {expected}")
    return model


def _expect_value(model: Mapping[str, Any], key: str, value: object, where: str) -> None:
    if model.get(key, value) != value:
        raise ConfigError(
            f"{where}: model.{key} is {model[key]!r}, which a GGUF tokenizer cannot express; expected {value!r}"
        )


def _byte_level(steps: list[dict[str, Any]]) -> bool:
    return [step.get("type") for step in steps] == ["ByteLevel"]


def _replace_and_fall_back(steps: list[dict[str, Any]]) -> bool:
    return [step.get("type") for step in steps] == ["Replace", "ByteFallback", "Fuse"] and replaces(
        steps[0], SPACE, " "
    )


def _word_piece(steps: list[dict[str, Any]]) -> bool:
    return [(step.get("type"), step.get("prefix")) for step in steps] == [("WordPiece", "##")]
