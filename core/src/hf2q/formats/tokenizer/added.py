"""Added tokens: those of ``tokenizer.json``, and what the configuration changes about them or adds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from hf2q.errors import ConfigError
from hf2q.formats.tokenizer.files import expect, kind, member
from hf2q.formats.tokenizer.source import TokenizerSource

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Source: transformers tokenization_utils_base.py, `SPECIAL_TOKENS_ATTRIBUTES`."""

_FORCING_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
"""Tokenizer classes that add all special tokens anew, as special. Source: transformers models/qwen2."""

_GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Tokenizer classes that name no tokens by themselves."""

_CLASS_DEFAULTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "gemma4": {f"{role}_token": f"<{role}>" for role in ("unk", "bos", "eos", "pad", "mask")},
        "bert": {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")},
    }
)
"""Tokens that the classes name when the files do not. Source: transformers models/gemma, models/bert."""

_FLAGS = ("single_word", "lstrip", "rstrip")


class AddedToken(msgspec.Struct):
    """One added token. `id` is None when the file does not state it."""

    content: str
    special: bool
    normalized: bool
    stripping: tuple[str, ...] = ()
    id: int | None = None


def read_added_tokens(source: TokenizerSource, vocab: Mapping[str, int], model: str) -> dict[int, AddedToken]:
    """All added tokens by id: those of ``tokenizer.json`` with what the configuration says about them, then new ones.

    ``special_tokens_map.json`` and ``added_tokens.json`` count only when the configuration has no
    ``added_tokens_decoder``; what neither names is named by the class that loads a `model` (GGUF's name). A token of
    ``tokenizer.json`` that this table lacks is kept, though some classes of transformers would forget it: the model
    was trained with it.
    Ids of tokens outside the vocabulary follow it without a gap, as the `tokenizers` library numbers them
    (added_vocabulary.rs, `add_tokens`).
    Source of the precedence: transformers tokenization_utils_base.py, `_from_pretrained`, and
    tokenization_utils_tokenizers.py, `TokenizersBackend.__init__`.
    Errors: ConfigError for ids that contradict that numbering and for entries of a wrong type.
    """
    where, config = source.where, source.settings
    here = f"{where}/tokenizer.json"
    entries = enumerate(member(source.tokenizer, "added_tokens", list, here, []))
    listed = [_entry(entry, f"{here}: added_tokens[{place}]") for place, entry in entries]
    listed.sort(key=lambda token: -1 if token.id is None else token.id)
    table = _Table(vocab, where)
    for token in listed:
        table.add(token)
    decoder = config.get("added_tokens_decoder")
    if decoder is not None:
        for token in _decoder(decoder, where):
            table.add(token)
    names, others = special_texts(source, vocab, model)
    if decoder is None:
        for text, number in source.extra_tokens.items():
            if text not in table.by_text:
                special = text in names or text in others
                number = expect(number, int, f"{where}/added_tokens.json: {text!r}")
                table.add(AddedToken(text, special, not special, id=number))
    for text in (*names, *others):
        known = table.by_text.get(text)
        if known is None or config.get("tokenizer_class") in _FORCING_CLASSES:
            table.add(AddedToken(text, True, False))
        elif text in names:
            known.special = True
    return {token.id: token for token in table.by_text.values() if token.id is not None}


def special_texts(source: TokenizerSource, vocab: Mapping[str, int], model: str) -> tuple[list[str], list[str]]:
    """Texts of the special tokens that transformers knows by name, and of the further ones, each once, in order.

    Source: transformers tokenization_utils_base.py, `PreTrainedTokenizerBase.__init__`, `all_special_tokens`.
    """
    named = {} if source.settings.get("tokenizer_class") in _GENERIC_CLASSES else _CLASS_DEFAULTS.get(model, {})
    merged: dict[str, Any] = {key: text for key, text in named.items() if text in vocab}
    merged.update(source.settings)
    if "added_tokens_decoder" not in source.settings:
        merged.update(source.special_map)
    return _special_texts(merged, source.where)


def check_flags(token: AddedToken, where: str) -> None:
    """Refuse an added token that takes white space around it or matches whole words only. Errors: ConfigError."""
    if token.stripping:
        flags = ", ".join(token.stripping)
        raise ConfigError(
            f"{where}: added token {token.content!r} has {flags} set, which GGUF cannot express",
            hint="set it to false in tokenizer.json and tokenizer_config.json if prompts never rely on it",
        )


class _Table:
    """Added tokens by text, numbered as the `tokenizers` library does."""

    def __init__(self, vocab: Mapping[str, int], where: str) -> None:
        self.by_text: dict[str, AddedToken] = {}
        self._vocab = vocab
        self._where = where
        self._next = len(vocab)

    def add(self, token: AddedToken) -> None:
        if not token.content:
            raise ConfigError(f"{self._where}: an added token has an empty text")
        known = self.by_text.get(token.content)
        number = known.id if known is not None else self._vocab.get(token.content, self._next)
        if token.id is not None and token.id != number:
            raise ConfigError(
                f"{self._where}: added token {token.content!r} has the id {token.id}; by the vocabulary and the tokens"
                f" before it, it is {number}",
                hint="tokenizer.json, tokenizer_config.json and added_tokens.json must agree; save the tokenizer anew",
            )
        if known is None and number == self._next:
            self._next += 1
        token.id = number
        self.by_text[token.content] = token


def _decoder(decoder: object, where: str) -> list[AddedToken]:
    here = f"{where}/tokenizer_config.json: added_tokens_decoder"
    tokens = []
    for key, entry in expect(decoder, dict, here).items():
        token = _entry(entry, f"{here}.{key}")
        if not (isinstance(key, str) and key.isascii() and key.isdigit()):
            raise ConfigError(f"{here}: {key!r} is not a token id")
        token.id = int(key)
        tokens.append(token)
    return sorted(tokens, key=lambda token: token.id or 0)


def _entry(entry: object, where: str) -> AddedToken:
    table = expect(entry, dict, where)
    special = member(table, "special", bool, where, False)
    return AddedToken(
        content=expect(table.get("content"), str, f"{where}: content"),
        special=special,
        normalized=member(table, "normalized", bool, where, not special),
        stripping=tuple(flag for flag in _FLAGS if member(table, flag, bool, where, False)),
        id=None if table.get("id") is None else expect(table["id"], int, f"{where}: id"),
    )


def _special_texts(config: Mapping[str, Any], where: str) -> tuple[list[str], list[str]]:
    """Texts of named special tokens, and of the further ones (``additional_special_tokens``), each once, in order."""
    names = [key for key in NAMED if key in config]
    names += [key for key in config if key.endswith("_token") and key not in NAMED and isinstance(config[key], str)]
    extra = config.get("extra_special_tokens", config.get("additional_special_tokens")) or []
    named = [config[key] for key in names]
    if isinstance(extra, dict):
        named += extra.values()
        extra = []
    if not isinstance(extra, list):
        raise ConfigError(
            f"{where}/tokenizer_config.json: additional_special_tokens is {kind(extra)}, expected an array"
        )
    first = dict.fromkeys(_text(value, where) for value in named if value is not None)
    second = dict.fromkeys(_text(value, where) for value in extra)
    return list(first), [text for text in second if text not in first]


def _text(value: object, where: str) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return expect(value, str, f"{where}/tokenizer_config.json: a special token")
