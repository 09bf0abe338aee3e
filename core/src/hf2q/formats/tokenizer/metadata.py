"""A checked view of the ``tokenizer.*`` keys of a GGUF file, which is not trusted."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hf2q.errors import LoadError
from hf2q.formats.tokenizer.ending import KEYS
from hf2q.formats.tokenizer.special import ADD_KEYS, ID_KEYS
from hf2q.formats.tokenizer.vocabulary import BYTE, NORMAL, UNUSED

log = logging.getLogger(__name__)

PREFIX = "tokenizer.ggml."
HINT = "convert the model again; the file's tokenizer is damaged or was written by another tool"


class TokenizerData(msgspec.Struct, frozen=True, kw_only=True):
    """What a GGUF file says about its tokenizer, with every type, length and range checked.

    ids  special token ids by role (``bos``, ``eos``, ``pad`` …), each inside the vocabulary
    add  the add_bos/add_eos/add_sep flags that are present
    """

    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    merges: list[tuple[str, str]]
    ids: dict[str, int]
    add: dict[str, bool]


def check_metadata(metadata: Mapping[str, Any]) -> TokenizerData:
    """The tokenizer keys of `metadata`, each array read once. Errors: LoadError naming the key."""
    model = _text(metadata, "model")
    if model != "gpt2":
        raise LoadError(
            f"{PREFIX}model is {model!r}, expected 'gpt2'", hint="only byte-level BPE tokenizers can be run"
        )
    pre = _text(metadata, "pre")
    tokens = _array(metadata, "tokens", str)
    types = _array(metadata, "token_type", int)
    if len(types) != len(tokens):
        raise LoadError(f"{PREFIX}token_type has {len(types)} entries, {PREFIX}tokens {len(tokens)}", hint=HINT)
    unknown = sorted({value for value in set(types) if not NORMAL <= value <= BYTE})
    if unknown:
        raise LoadError(f"{PREFIX}token_type has the value {unknown[0]}, expected {NORMAL} to {BYTE}", hint=HINT)
    return TokenizerData(
        pre=pre,
        tokens=tokens,
        types=types,
        merges=_merges(_array(metadata, "merges", str)),
        ids=_ids(metadata, types),
        add=_flags(metadata),
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
    wrong = set(map(type, values)) - {element}
    if wrong:
        names = ", ".join(sorted(kind.__name__ for kind in wrong))
        raise LoadError(f"{PREFIX}{key} holds {names}, expected {element.__name__} only", hint=HINT)
    return values


def _merges(lines: Sequence[str]) -> list[tuple[str, str]]:
    try:
        return [(left, right) for left, right in (line.split(" ") for line in lines)]
    except ValueError:
        place = next(place for place, line in enumerate(lines) if line.count(" ") != 1)
    raise LoadError(f"{PREFIX}merges[{place}] is {lines[place]!r}, expected two texts and a space", hint=HINT)


def _ids(metadata: Mapping[str, Any], types: Sequence[int]) -> dict[str, int]:
    """Ids by role. One outside the vocabulary counts as absent, as in llama.cpp src/llama-vocab.cpp, `load`."""
    keys = {role: key for role, key in ID_KEYS.items() if key}
    keys.update({role: f"{PREFIX}{role}_token_id" for role in KEYS})
    ids = {}
    for role, key in keys.items():
        value = metadata.get(key)
        if value is None:
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


def _flags(metadata: Mapping[str, Any]) -> dict[str, bool]:
    flags = {}
    for role, key in ADD_KEYS.items():
        value = metadata.get(key)
        if value is None:
            continue
        if type(value) is not bool:
            raise LoadError(f"{key} is {type(value).__name__}, expected a truth value", hint=HINT)
        flags[role] = value
    return flags
