"""A checkpoint's tokenizer as GGUF metadata. The convert side's way into this package."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf2q.errors import ConfigError
from hf2q.formats.tokenizer.added import AddedToken, read_added_tokens
from hf2q.formats.tokenizer.alphabet import BYTE_OF_CHAR
from hf2q.formats.tokenizer.files import kind, read_object
from hf2q.formats.tokenizer.models import BERT, GEMMA4, GPT2, check_model
from hf2q.formats.tokenizer.read_bert import bert_fields
from hf2q.formats.tokenizer.read_gemma4 import gemma4_fields
from hf2q.formats.tokenizer.source import TokenizerSource, open_tokenizer
from hf2q.formats.tokenizer.special import read_normalizer, read_special
from hf2q.formats.tokenizer.structure import pick_pre_tokenizer
from hf2q.formats.tokenizer.template import read_templates
from hf2q.formats.tokenizer.vocabulary import read_merges, read_vocabulary, token_arrays
from hf2q.types import MetadataField, PreTokenizer, ValueType

log = logging.getLogger(__name__)

MAX_TOKENS = 1 << 24
"""Largest vocabulary taken; sixty times the largest there is, so that a wrong size does not fill the memory."""


def read_tokenizer(
    directory: Path,
    vocab_size: int,
    config: Mapping[str, Any],
    pre_tokenizers: Sequence[PreTokenizer],
    pre: str | None = None,
) -> tuple[MetadataField, ...]:
    """Every ``tokenizer.*`` field of a checkpoint, in the order and types of llama.cpp's converter.

    directory       holds ``tokenizer.json`` and, if any, ``tokenizer_config.json`` and the chat template
    vocab_size      length of the token arrays, rows of the embedding; missing ids become ``[PADi]``
    config          the parsed ``config.json``, whole (``text_config`` is looked into)
    pre_tokenizers  the known ones; the first whose structure is that of ``tokenizer.json`` is named
    pre             name of one of them, taken without comparing structures

    Source: llama.cpp conversion/base.py, `_set_vocab_gpt2`, conversion/gemma.py, `Gemma4Model.set_vocab`,
    conversion/bert.py, `BertModel.set_vocab`; gguf-py/gguf/vocab.py, `SpecialVocab.add_to_gguf`.
    Errors: MissingFileError without ``tokenizer.json``; FormatError for broken JSON; ConfigError for anything that is
    not understood or that GGUF cannot express.
    """
    if not 0 < vocab_size <= MAX_TOKENS:
        raise ConfigError(f"{directory}/config.json: vocab_size is {vocab_size}, expected 1 to {MAX_TOKENS}")
    source = open_tokenizer(directory, config)
    check_model(source.tokenizer, source.path)
    record = pick_pre_tokenizer(source.tokenizer, pre_tokenizers, pre, source.path)
    fields = {GPT2: _gpt2_fields, GEMMA4: gemma4_fields, BERT: bert_fields}[record.model](source, vocab_size, record)
    log.info("tokenizer: %s, %d tokens, pre-tokenizer %s", record.model, vocab_size, record.name)
    return fields


def _gpt2_fields(source: TokenizerSource, vocab_size: int, record: PreTokenizer) -> tuple[MetadataField, ...]:
    model = source.tokenizer["model"]
    vocab = read_vocabulary(model, source.path)
    _check_unknown(model, vocab, source.path)
    added = read_added_tokens(source, vocab, GPT2)
    _check_vocab_json(source, vocab, added)
    tokens, types = token_arrays(vocab, added, vocab_size, source.where)
    return (
        MetadataField.string("tokenizer.ggml.model", GPT2),
        MetadataField.string("tokenizer.ggml.pre", record.name),
        MetadataField.array("tokenizer.ggml.tokens", ValueType.STRING, tokens),
        MetadataField.array("tokenizer.ggml.token_type", ValueType.INT32, types),
        MetadataField.array("tokenizer.ggml.merges", ValueType.STRING, read_merges(model, vocab, source.path)),
        *read_special(source),
        *read_templates(source.directory, source.settings),
        *read_normalizer(source),
    )


def _check_vocab_json(source: TokenizerSource, vocab: Mapping[str, int], added: Mapping[int, AddedToken]) -> None:
    """See that ``vocab.json``, the older form, where there is one, does not contradict ``tokenizer.json``.

    Tokens that only one of them has are no contradiction. Errors: ConfigError naming the first that is.
    """
    path = source.directory / "vocab.json"
    older = read_object(path)
    if older is None:
        return
    ids = {**vocab, **{token.content: number for number, token in added.items()}}
    texts = {number: text for text, number in ids.items()}
    for text, number in older.items():
        known = ids.get(text)
        taken = texts.get(number) if type(number) is int else None
        if (known is None and taken is not None) or (known is not None and known != number):
            other = f"{text!r} the id {known}" if known is not None else f"the id {number} to {taken!r}"
            raise ConfigError(
                f"{path} gives the token {text!r} the id {number!r}, tokenizer.json gives {other}",
                hint="the two files belong to different models; remove the one that is wrong",
            )


def _check_unknown(model: Mapping[str, Any], vocab: Mapping[str, int], where: str) -> None:
    """Refuse an unknown-token rule that could fire: with all 256 byte characters in the vocabulary none can."""
    missing = [char for char in BYTE_OF_CHAR if char not in vocab]
    if missing and model.get("unk_token") is not None:
        raise ConfigError(f"{where}: model.unk_token is {kind(model['unk_token'])}, which GGUF cannot express")
    if missing:
        log.warning("%s: %d of the 256 byte tokens are missing; text that holds them loses them", where, len(missing))
