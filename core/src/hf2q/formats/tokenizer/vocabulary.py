"""Token texts, token types and merges, out of ``tokenizer.json`` and ``tokenizer_config.json``.

What llama.cpp's conversion/base.py, `get_vocab_base`, takes from `transformers.AutoTokenizer` is worked out here from
the files: the vocabulary of the model, and over it the added tokens, which the configuration may change or extend.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hf2q.errors import ConfigError
from hf2q.formats.tokenizer.added import AddedToken, check_flags
from hf2q.formats.tokenizer.alphabet import token_bytes
from hf2q.formats.tokenizer.files import expect

log = logging.getLogger(__name__)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token types. Source: llama.cpp gguf-py/gguf/constants.py, `TokenType`."""


def ids_of(types: bytes, *kinds: int) -> Iterator[int]:
    """Ids of the tokens that are of `kinds`, ascending; `types` holds a byte for each token."""
    return (found.start() for found in re.finditer(b"[" + re.escape(bytes(kinds)) + b"]", types))


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


def check_size(vocab: Mapping[str, int], added: Mapping[int, AddedToken], vocab_size: int, where: str) -> None:
    """See that every token has a row in the embedding. Errors: ConfigError saying what to do."""
    highest = max((*vocab.values(), *added), default=-1)
    if highest >= vocab_size:
        beyond = sorted(token.content for number, token in added.items() if number >= vocab_size)
        shown = f" ({', '.join(map(repr, beyond[:3]))}{', …' if len(beyond) > 3 else ''})" if beyond else ""
        raise ConfigError(
            f"{where}/tokenizer.json has a token with id {highest}{shown}, config.json says vocab_size = {vocab_size}",
            hint="the tokenizer belongs to another model, or tokens were added without giving the model rows for them:"
            " remove them, or call model.resize_token_embeddings(len(tokenizer)) and save the model again",
        )


def check_numbering(vocab: Mapping[str, int], where: str) -> None:
    """See that the ids of `vocab` have no gap, as llama.cpp's converter requires of these models. Errors: ConfigError.

    Source: llama.cpp gguf-py/gguf/vocab.py, `LlamaHfVocab.hf_tokens`.
    """
    if vocab and max(vocab.values()) != len(vocab) - 1:
        taken = set(vocab.values())
        gap = next(number for number in range(len(vocab)) if number not in taken)
        raise ConfigError(f"{where}: model.vocab has {len(vocab)} tokens, but none with the id {gap}")


def token_arrays(
    vocab: Mapping[str, int],
    added: Mapping[int, AddedToken],
    vocab_size: int,
    where: str,
    decoded: Callable[[str], str] | None = None,
) -> tuple[list[str], list[int]]:
    """Texts and types of ids 0 to `vocab_size` - 1; ids that no token has become ``[PADi]``, type UNUSED.

    `decoded` gives the text of an added token after encoding and decoding it; by default that of byte-level BPE.

    Source: llama.cpp conversion/base.py, `get_vocab_base`, `does_token_look_special`.
    Errors: ConfigError for an id outside, for two tokens of one text, and for an added token that takes white space
    around it or matches whole words only, since GGUF has no place to say so and other text would be encoded otherwise.
    """
    check_size(vocab, added, vocab_size, where)
    tokens = [f"[PAD{number}]" for number in range(vocab_size)]
    types = [UNUSED] * vocab_size
    for text, number in vocab.items():
        tokens[number], types[number] = text, NORMAL
    for number, token in added.items():
        check_flags(token, where)
        text = token.content if token.normalized else (decoded or _decoded)(token.content)
        control = token.special or looks_special(text)
        tokens[number] = text if control else text.replace("\u2581", " ")
        types[number] = CONTROL if control else USER_DEFINED
    check_distinct(tokens, types, where)
    return tokens, types


def read_merges(model: Mapping[str, Any], vocab: Mapping[str, int], where: str) -> list[str]:
    """Merges as ``left right``; a space inside a piece is written U+0120. Errors: ConfigError.

    Source: llama.cpp gguf-py/gguf/vocab.py, `SpecialVocab._try_load_from_tokenizer_json`.
    """
    listed = expect(model.get("merges"), list, f"{where}: model.merges")
    merges = []
    for place, entry in enumerate(listed):  # half a million times in the largest
        pair = entry.split(" ") if type(entry) is str else entry
        if not (type(pair) is list and len(pair) == 2 and type(pair[0]) is type(pair[1]) is str):
            raise ConfigError(f"{where}: model.merges[{place}] is {entry!r}, expected two texts")
        left, right = pair
        if not (left in vocab and right in vocab and left + right in vocab):
            part = next(part for part in (left, right, left + right) if part not in vocab)
            raise ConfigError(f"{where}: model.merges[{place}] needs {part!r}, which is not in the vocabulary")
        line = f"{left} {right}"
        if line.count(" ") != 1:
            line = f"{_spaced(left)} {_spaced(right)}"
        merges.append(line)
    if not merges:
        raise ConfigError(f"{where}: model.merges is empty, expected the merges of a BPE tokenizer")
    return merges


def looks_special(text: str) -> bool:
    """Whether an added token not marked special is one by its looks. Source: see `token_arrays`."""
    if text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]"):
        return True
    brackets = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
    return any(text.startswith(head) and text.endswith(tail) for head, tail in brackets)


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


def check_distinct(tokens: list[str], types: list[int], where: str) -> None:
    """See that no two tokens in use are written alike. Errors: ConfigError."""
    used = [text for text, token_type in zip(tokens, types, strict=True) if token_type != UNUSED]
    if len(set(used)) == len(used):
        return
    seen: set[str] = set()
    for text in used:
        if text in seen:
            raise ConfigError(f"{where}/tokenizer.json: two tokens are written {text!r}")
        seen.add(text)
