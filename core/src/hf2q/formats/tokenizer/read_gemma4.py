"""GGUF's ``gemma4`` tokenizer: BPE over text whose spaces are U+2581, with byte fallback.

Source: llama.cpp conversion/gemma.py, `Gemma4Model.set_vocab`; gguf-py/gguf/vocab.py, `LlamaHfVocab`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from hf2q.errors import ConfigError, listing
from hf2q.formats.tokenizer.added import AddedToken, check_flags, read_added_tokens, special_texts
from hf2q.formats.tokenizer.models import BYTE_TOKEN, BYTE_TOKENS, GEMMA4, VISIBLE
from hf2q.formats.tokenizer.source import TokenizerSource
from hf2q.formats.tokenizer.special import ADD_KEYS, ID_KEYS, read_normalizer, read_special
from hf2q.formats.tokenizer.template import read_templates
from hf2q.formats.tokenizer.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    check_distinct,
    check_numbering,
    check_size,
    read_merges,
    read_vocabulary,
)
from hf2q.types import MetadataField, PreTokenizer, ValueType

log = logging.getLogger(__name__)

SCORE = -1000.0
"""Every token's score; BPE does not use it."""


def gemma4_fields(source: TokenizerSource, vocab_size: int, record: PreTokenizer) -> tuple[MetadataField, ...]:
    """All fields; `record` has no place in them. Arguments and errors: see `hf2q.formats.tokenizer.read`.

    llama.cpp's converter does not pad the vocabulary: where the embedding has rows to spare, its files do not load.
    """
    del record
    model = source.tokenizer["model"]
    vocab = read_vocabulary(model, source.path)
    check_numbering(vocab, source.path)
    missing = [text for text in BYTE_TOKENS if text not in vocab]
    if missing:
        raise ConfigError(
            f"{source.path}: model.vocab lacks {len(missing)} of the 256 byte tokens, the first is {missing[0]!r};"
            " byte fallback needs all of them"
        )
    added = read_added_tokens(source, vocab, GEMMA4)
    check_size(vocab, added, vocab_size, source.where)
    specials = {text for texts in special_texts(source, vocab, GEMMA4) for text in texts}
    tokens, types = _arrays(vocab, added, specials, vocab_size, source.where)
    fields = [
        MetadataField.string("tokenizer.ggml.model", GEMMA4),
        MetadataField.array("tokenizer.ggml.tokens", ValueType.STRING, tokens),
        MetadataField.array("tokenizer.ggml.scores", ValueType.FLOAT32, [SCORE] * len(tokens)),
        MetadataField.array("tokenizer.ggml.token_type", ValueType.INT32, types),
        MetadataField.array("tokenizer.ggml.merges", ValueType.STRING, read_merges(model, vocab, source.path)),
        *read_special(source),
        *read_templates(source.directory, source.settings),
        *read_normalizer(source),
        MetadataField.boolean("tokenizer.ggml.add_space_prefix", False),
    ]
    if all(field.key != ID_KEYS["bos"] for field in fields):
        raise ConfigError(
            f"{source.where}: no file says which id the bos token has, and every text of a gemma4 model begins with it",
            hint="name it as bos_token in tokenizer_config.json, or bos_token_id in config.json",
        )
    return _with_bos(fields)


def _arrays(
    vocab: Mapping[str, int], added: Mapping[int, AddedToken], specials: set[str], vocab_size: int, where: str
) -> tuple[list[str], list[int]]:
    """Texts and types of all ids. Only special tokens that a file names are CONTROL, whatever their own flag says."""
    tokens = [f"[PAD{number}]" for number in range(vocab_size)]
    types = [UNUSED] * vocab_size
    for text, number in vocab.items():
        tokens[number] = text
        types[number] = BYTE if BYTE_TOKEN.fullmatch(text) else CONTROL if text in specials else NORMAL
    for number, token in added.items():
        check_flags(token, where)
        if number >= len(vocab):
            tokens[number] = token.content
            types[number] = CONTROL if token.content in specials else USER_DEFINED
    unseen = [token.content for number, token in sorted(added.items()) if types[number] == NORMAL]
    if unseen:
        log.warning(
            "%s: %d added tokens are not named in tokenizer_config.json, so that GGUF has them as ordinary text: %s",
            where,
            len(unseen),
            listing(unseen[:5]) + (", …" if len(unseen) > 5 else ""),
        )
    for number, text in enumerate(tokens):
        if text in VISIBLE:
            types[number] = USER_DEFINED
    check_distinct(tokens, types, where)
    return tokens, types


def _with_bos(fields: list[MetadataField]) -> tuple[MetadataField, ...]:
    """`fields` with BOS switched on, where the key stands or else at the end."""
    add = MetadataField.boolean(ADD_KEYS["bos"], True)
    if any(field.key == add.key for field in fields):
        return tuple(add if field.key == add.key else field for field in fields)
    return (*fields, add)
