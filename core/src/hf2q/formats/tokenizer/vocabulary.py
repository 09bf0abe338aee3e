"""Token texts, token types and merges, out of ``tokenizer.json`` and ``tokenizer_config.json``.

What llama.cpp's conversion/base.py, `get_vocab_base`, takes from `transformers.AutoTokenizer` is worked out here from
the files: the vocabulary of the model, and over it the added tokens, which the configuration may change or extend.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from hf2q.errors import ConfigError
from hf2q.formats.tokenizer.alphabet import token_bytes
from hf2q.formats.tokenizer.files import expect, kind, member

log = logging.getLogger(__name__)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token types. Source: llama.cpp gguf-py/gguf/constants.py, `TokenType`."""

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Source: transformers tokenization_utils_base.py, `SPECIAL_TOKENS_ATTRIBUTES`."""

_FORCING_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
"""Tokenizer classes that add all special tokens anew, as special. Source: transformers models/qwen2."""

_FLAGS = ("single_word", "lstrip", "rstrip")


class AddedToken(msgspec.Struct):
    """One added token. `id` is None when the file does not state it."""

    content: str
    special: bool
    normalized: bool
    stripping: tuple[str, ...] = ()
    id: int | None = None


def read_vocabulary(model: Mapping[str, Any], where: str) -> dict[str, int]:
    """``model.vocab``: text to id, ids distinct. Errors: ConfigError."""
    vocab = expect(model.get("vocab"), dict, f"{where}: model.vocab")
    for text, number in vocab.items():
        if type(number) is not int or number < 0:
            raise ConfigError(f"{where}: model.vocab: {text!r} has the id {number!r}, expected a whole number")
    if len(set(vocab.values())) != len(vocab):
        seen: dict[int, str] = {}
        for text, number in vocab.items():
            if number in seen:
                raise ConfigError(f"{where}: model.vocab: {seen[number]!r} and {text!r} share the id {number}")
            seen[number] = text
    return vocab


def read_added_tokens(
    tokenizer: Mapping[str, Any],
    config: Mapping[str, Any],
    legacy: tuple[Mapping[str, Any], Mapping[str, Any]],
    vocab: Mapping[str, int],
    where: str,
) -> dict[int, AddedToken]:
    """All added tokens by id: those of ``tokenizer.json`` with what the configuration says about them, then new ones.

    `config` is ``tokenizer_config.json``; `legacy` the parsed ``special_tokens_map.json`` and ``added_tokens.json``,
    which count only when `config` has no ``added_tokens_decoder``. A token of ``tokenizer.json`` that this table lacks
    is kept, though some classes of transformers would forget it: the model was trained with it.
    Ids of tokens outside the vocabulary follow it without a gap, as the `tokenizers` library numbers them
    (added_vocabulary.rs, `add_tokens`).
    Source of the precedence: transformers tokenization_utils_base.py, `_from_pretrained`, and
    tokenization_utils_tokenizers.py, `TokenizersBackend.__init__`.
    Errors: ConfigError for ids that contradict that numbering and for entries of a wrong type.
    """
    here = f"{where}/tokenizer.json"
    entries = enumerate(member(tokenizer, "added_tokens", list, here, []))
    listed = [_entry(entry, f"{here}: added_tokens[{place}]") for place, entry in entries]
    listed.sort(key=lambda token: -1 if token.id is None else token.id)
    table = _Table(vocab, where)
    for token in listed:
        table.add(token)
    decoder = config.get("added_tokens_decoder")
    special_map, extra_tokens = legacy
    merged = dict(config)
    if decoder is not None:
        for token in _decoder(decoder, where):
            table.add(token)
    else:
        merged.update(special_map)
    names, others = _special_texts(merged, where)
    if decoder is None:
        for text, number in extra_tokens.items():
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


def token_arrays(
    vocab: Mapping[str, int], added: Mapping[int, AddedToken], vocab_size: int, where: str
) -> tuple[list[str], list[int]]:
    """Texts and types of ids 0 to `vocab_size` - 1; ids that no token has become ``[PADi]``, type UNUSED.

    Source: llama.cpp conversion/base.py, `get_vocab_base`, `does_token_look_special`.
    Errors: ConfigError for an id outside, for two tokens of one text, and for an added token that takes white space
    around it or matches whole words only, since GGUF has no place to say so and other text would be encoded otherwise.
    """
    highest = max((*vocab.values(), *added), default=-1)
    if highest >= vocab_size:
        raise ConfigError(
            f"{where}/tokenizer.json has a token with id {highest}, config.json says vocab_size = {vocab_size}",
            hint="the tokenizer belongs to another model, or vocab_size in config.json is wrong",
        )
    tokens = [f"[PAD{number}]" for number in range(vocab_size)]
    types = [UNUSED] * vocab_size
    for text, number in vocab.items():
        tokens[number], types[number] = text, NORMAL
    for number, token in added.items():
        if token.stripping:
            flags = ", ".join(token.stripping)
            raise ConfigError(
                f"{where}: added token {token.content!r} has {flags} set, which GGUF cannot express",
                hint="set it to false in tokenizer.json and tokenizer_config.json if prompts never rely on it",
            )
        text = token.content if token.normalized else _decoded(token.content)
        control = token.special or looks_special(text)
        tokens[number] = text if control else text.replace("\u2581", " ")
        types[number] = CONTROL if control else USER_DEFINED
    _check_distinct(tokens, types, where)
    return tokens, types


def read_merges(model: Mapping[str, Any], vocab: Mapping[str, int], where: str) -> list[str]:
    """Merges as ``left right``; a space inside a piece is written U+0120. Errors: ConfigError.

    Source: llama.cpp gguf-py/gguf/vocab.py, `SpecialVocab._try_load_from_tokenizer_json`.
    """
    listed = expect(model.get("merges"), list, f"{where}: model.merges")
    merges = []
    for place, entry in enumerate(listed):
        pair = entry.split(" ") if isinstance(entry, str) else entry
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise ConfigError(f"{where}: model.merges[{place}] is {entry!r}, expected two texts")
        left, right = pair
        for part in (left, right, left + right):
            if part not in vocab:
                raise ConfigError(f"{where}: model.merges[{place}] needs {part!r}, which is not in the vocabulary")
        merges.append(f"{left} {right}" if isinstance(entry, str) else _spaced(left) + " " + _spaced(right))
    if not merges:
        raise ConfigError(f"{where}: model.merges is empty", hint="only byte-level BPE tokenizers are supported")
    return merges


def looks_special(text: str) -> bool:
    """Whether an added token not marked special is one by its looks. Source: see `token_arrays`."""
    if text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]"):
        return True
    brackets = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
    return any(text.startswith(head) and text.endswith(tail) for head, tail in brackets)


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


def _decoded(text: str) -> str:
    """`text` after encoding and decoding it as an added token: characters of the byte-level alphabet become bytes."""
    decoded = token_bytes(text).decode("utf-8", "replace")
    if decoded != text:
        level = logging.WARNING if "\ufffd" in decoded else logging.INFO
        log.log(
            level, "added token %r is written %r: its characters are those of the byte-level alphabet", text, decoded
        )
    return decoded


def _spaced(part: str) -> str:
    return part.replace(" ", "\u0120")


def _check_distinct(tokens: list[str], types: list[int], where: str) -> None:
    used = [text for text, token_type in zip(tokens, types, strict=True) if token_type != UNUSED]
    if len(set(used)) == len(used):
        return
    seen: set[str] = set()
    for text in used:
        if text in seen:
            raise ConfigError(f"{where}/tokenizer.json: two tokens are written {text!r}")
        seen.add(text)
