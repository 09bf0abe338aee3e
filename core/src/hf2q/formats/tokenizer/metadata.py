"""A checked view of the ``tokenizer.*`` keys of a GGUF file, which is not trusted."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from hf2q.errors import LoadError
from hf2q.formats.gguf.metadata import Metadata
from hf2q.formats.tokenizer.ending import KEYS
from hf2q.formats.tokenizer.merges import read_merges
from hf2q.formats.tokenizer.models import BERT, BYTE_TOKEN, GEMMA4, GPT2
from hf2q.formats.tokenizer.special import ADD_KEYS, ID_KEYS, NORMALIZER_KEYS
from hf2q.formats.tokenizer.texts import Texts, joined_texts, texts_of
from hf2q.formats.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNUSED, ids_of
from hf2q.formats.tokenizer.wordpiece import DEFAULT_IDS
from hf2q.types import ValueType

log = logging.getLogger(__name__)

PREFIX = "tokenizer.ggml."
HINT = "convert the model again; the file's tokenizer is damaged or was written by another tool"


class TokenizerData(msgspec.Struct, frozen=True, kw_only=True):
    """What a GGUF file says about its tokenizer, with every type, length and range checked.

    model       ``gpt2``, ``gemma4`` or ``bert``
    pre         name of the pre-tokenizer
    types       of the tokens, a byte each
    merges      none for ``bert``
    ids         special token ids by role (``bos``, ``eos``, ``pad`` …), each inside the vocabulary
    add         the add_bos/add_eos/add_sep flags that are present, and those that the model implies
    normalizer  ``lowercase`` and ``strip_accents``, for ``bert``
    suppressed  ids that must never be generated, each inside the vocabulary
    """

    model: str
    pre: str
    tokens: Texts
    types: bytes
    merges: Sequence[tuple[str, str]]
    ids: dict[str, int]
    add: dict[str, bool]
    normalizer: dict[str, bool]
    suppressed: frozenset[int]


def check_metadata(metadata: Mapping[str, Any]) -> TokenizerData:
    """The tokenizer keys of `metadata`, each array read once. Errors: LoadError naming the key."""
    model = _text(metadata, "model")
    if model not in (GPT2, GEMMA4, BERT):
        raise LoadError(
            f"{PREFIX}model is {model!r}, expected 'gpt2', 'gemma4' or 'bert'",
            hint="byte-level BPE, Gemma 4 and WordPiece tokenizers can be run",
        )
    pre = GEMMA4 if model == GEMMA4 else _text(metadata, "pre")
    tokens = _tokens(metadata)
    types = _types(metadata, len(tokens))
    merges = [] if model == BERT else _merges(metadata)
    if model == GEMMA4:
        _check_bytes(tokens, types)
        types = _with_markers(tokens, types, merges)
    add = {role: value for role, key in ADD_KEYS.items() if (value := _flag(metadata, key)) is not None}
    if model != GPT2:
        add["bos"] = True  # whatever the file says. Source: llama.cpp src/llama-vocab.cpp, `load` and `tokenize`
    if model == BERT:
        add["eos"] = True
    return TokenizerData(
        model=model,
        pre=pre,
        tokens=tokens,
        types=types,
        merges=merges,
        ids=_ids(metadata, types, DEFAULT_IDS if model == BERT else {}),
        add=add,
        normalizer=_normalizer(metadata) if model == BERT else {},
        suppressed=_suppressed(metadata, len(tokens)),
    )


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(PREFIX + key)
    if type(value) is not str:
        found = "missing" if value is None else f"{type(value).__name__}"
        raise LoadError(f"{PREFIX}{key} is {found}, expected a string", hint=HINT)
    return value


def _array(metadata: Mapping[str, Any], key: str, element: type) -> Sequence[Any]:
    value = metadata.get(PREFIX + key)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        found = "missing" if value is None else type(value).__name__
        raise LoadError(f"{PREFIX}{key} is {found}, expected an array", hint=HINT)
    values = tuple(value)
    if not values:
        raise LoadError(f"{PREFIX}{key} is empty", hint=HINT)
    sample = values[:1] if isinstance(metadata, Metadata) else values  # arrays in a file hold one type
    wrong = set(map(type, sample)) - {element}
    if wrong:
        names = ", ".join(sorted(kind.__name__ for kind in wrong))
        raise LoadError(f"{PREFIX}{key} holds {names}, expected {element.__name__} only", hint=HINT)
    return values


def _of_file(metadata: Mapping[str, Any], key: str) -> Metadata | None:
    """`metadata` when it is a file's, with strings under `key`, which need not become str one by one."""
    if isinstance(metadata, Metadata) and key in metadata and metadata.element_of(key) is ValueType.STRING:
        return metadata
    return None


def _tokens(metadata: Mapping[str, Any]) -> Texts:
    key = f"{PREFIX}tokens"
    file = _of_file(metadata, key)
    texts = None if file is None else joined_texts(partial(file.joined, key), file.length_of(key))
    return texts_of(_array(metadata, "tokens", str)) if texts is None else texts


def _types(metadata: Mapping[str, Any], n_vocab: int) -> bytes:
    types = _array(metadata, "token_type", int)
    if len(types) != n_vocab:
        raise LoadError(f"{PREFIX}token_type has {len(types)} entries, {PREFIX}tokens {n_vocab}", hint=HINT)
    unknown = sorted({value for value in set(types) if not NORMAL <= value <= BYTE})
    if unknown:
        raise LoadError(f"{PREFIX}token_type has the value {unknown[0]}, expected {NORMAL} to {BYTE}", hint=HINT)
    return bytes(types)


def _merges(metadata: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    key = f"{PREFIX}merges"
    file = _of_file(metadata, key)
    merges = None if file is None else read_merges(file.joined(key, b"\n"), file.length_of(key))
    if merges is not None:
        return merges
    lines = _array(metadata, "merges", str)
    try:
        return [(left, right) for left, right in (line.split(" ") for line in lines)]
    except ValueError:
        place = next(place for place, line in enumerate(lines) if line.count(" ") != 1)
    raise LoadError(f"{key}[{place}] is {lines[place]!r}, expected two texts and a space", hint=HINT)


def _check_bytes(tokens: Sequence[str], types: bytes) -> None:
    for number in ids_of(types, BYTE):
        if not BYTE_TOKEN.fullmatch(tokens[number]):
            raise LoadError(f"{PREFIX}tokens[{number}] is {tokens[number]!r}, expected a byte like '<0x0A>'", hint=HINT)


def _with_markers(tokens: Sequence[str], types: bytes, merges: Sequence[tuple[str, str]]) -> bytes:
    """`types` with the markers that a converter has let pass as ordinary text: ``<|video|>`` becomes CONTROL.

    Only tokens that look like a marker and that no merge makes, so that text could never become one otherwise.
    """
    looks = [
        number
        for number, text in enumerate(tokens)
        if text[:1] == "<" and text[-1:] == ">" and types[number] == NORMAL and (text[1:2] == "|" or text[-2:-1] == "|")
    ]
    if not looks:
        return types
    made = {left + right for left, right in merges if left[:1] == "<" or not left}
    changed = bytearray(types)
    for number in looks:
        if tokens[number] not in made:
            changed[number] = CONTROL
    return bytes(changed)


def _ids(metadata: Mapping[str, Any], types: bytes, defaults: Mapping[str, int]) -> dict[str, int]:
    """Ids by role. One outside the vocabulary counts as absent, as in llama.cpp src/llama-vocab.cpp, `load`."""
    keys = {role: key for role, key in ID_KEYS.items() if key}
    keys.update({role: f"{PREFIX}{role}_token_id" for role in KEYS})
    ids = {}
    for role, key in keys.items():
        value = metadata.get(key)
        if value is None:
            value = defaults.get(key)
            if value is None or value >= len(types):
                continue
        if type(value) is not int:
            raise LoadError(f"{key} is {type(value).__name__}, expected a whole number", hint=HINT)
        if not 0 <= value < len(types):
            log.warning("%s = %d is outside the vocabulary of %d tokens and is not used", key, value, len(types))
        elif types[value] == UNUSED:
            log.warning("%s = %d is an unused token and is not used", key, value)
        else:
            ids[role] = value
    return ids


def _flag(metadata: Mapping[str, Any], key: str) -> bool | None:
    value = metadata.get(key)
    if value is not None and type(value) is not bool:
        raise LoadError(f"{key} is {type(value).__name__}, expected a truth value", hint=HINT)
    return value


def _normalizer(metadata: Mapping[str, Any]) -> dict[str, bool]:
    """Both on unless the file says otherwise; accents go with the capitals unless it says so of them."""
    lowercase = _flag(metadata, NORMALIZER_KEYS["lowercase"])
    lowercase = True if lowercase is None else lowercase
    strip = _flag(metadata, NORMALIZER_KEYS["strip_accents"])
    return {"lowercase": lowercase, "strip_accents": lowercase if strip is None else strip}


def _suppressed(metadata: Mapping[str, Any], n_vocab: int) -> frozenset[int]:
    """Ids outside the vocabulary are left out. Source: llama.cpp src/llama-vocab.cpp, `load`."""
    if metadata.get(f"{PREFIX}suppress_tokens") is None:
        return frozenset()
    return frozenset(number for number in _array(metadata, "suppress_tokens", int) if 0 <= number < n_vocab)
