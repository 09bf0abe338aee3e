"""A checkpoint's tokenizer as GGUF metadata. The convert side's way into this package."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf2q.errors import ConfigError
from hf2q.formats.tokenizer.alphabet import BYTE_OF_CHAR
from hf2q.formats.tokenizer.files import kind, read_object
from hf2q.formats.tokenizer.special import read_special
from hf2q.formats.tokenizer.structure import check_model, pick_pre_tokenizer
from hf2q.formats.tokenizer.template import read_templates
from hf2q.formats.tokenizer.vocabulary import read_added_tokens, read_merges, read_vocabulary, token_arrays
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
    """Every ``tokenizer.*`` field of a byte-level BPE, in the order and types of llama.cpp's converter.

    directory       holds ``tokenizer.json`` and, if any, ``tokenizer_config.json`` and the chat template
    vocab_size      length of the token arrays; missing ids become ``[PADi]``
    config          the parsed ``config.json``, whole (``text_config`` is looked into)
    pre_tokenizers  the known ones; the first whose structure is that of ``tokenizer.json`` is named
    pre             name of one of them, taken without comparing structures

    Source: llama.cpp conversion/base.py, `_set_vocab_gpt2`; gguf-py/gguf/vocab.py, `SpecialVocab.add_to_gguf`.
    Errors: MissingFileError without ``tokenizer.json``; FormatError for broken JSON; ConfigError for anything that is
    not understood or that GGUF cannot express.
    """
    if not 0 < vocab_size <= MAX_TOKENS:
        raise ConfigError(f"{directory}/config.json: vocab_size is {vocab_size}, expected 1 to {MAX_TOKENS}")
    path = directory / "tokenizer.json"
    hint = "save the tokenizer in its fast form, e.g. AutoTokenizer.from_pretrained(SRC).save_pretrained(SRC)"
    tokenizer = read_object(path, required=True, hint=hint) or {}
    tokenizer_config = read_object(directory / "tokenizer_config.json") or {}
    legacy = (
        read_object(directory / "special_tokens_map.json") or {},
        read_object(directory / "added_tokens.json") or {},
    )
    where = str(directory)
    model = check_model(tokenizer, str(path))
    vocab = read_vocabulary(model, str(path))
    _check_unknown(model, vocab, str(path))
    added = read_added_tokens(tokenizer, tokenizer_config, legacy, vocab, where)
    tokens, types = token_arrays(vocab, added, vocab_size, where)
    merges = read_merges(model, vocab, str(path))
    record = pick_pre_tokenizer(tokenizer, pre_tokenizers, pre, str(path))
    log.info("tokenizer: %d tokens, %d merges, pre-tokenizer %s", len(tokens), len(merges), record.name)
    return (
        MetadataField.string("tokenizer.ggml.model", "gpt2"),
        MetadataField.string("tokenizer.ggml.pre", record.name),
        MetadataField.array("tokenizer.ggml.tokens", ValueType.STRING, tokens),
        MetadataField.array("tokenizer.ggml.token_type", ValueType.INT32, types),
        MetadataField.array("tokenizer.ggml.merges", ValueType.STRING, merges),
        *read_special(tokenizer, tokenizer_config, config, where),
        *read_templates(directory, tokenizer_config),
    )


def _check_unknown(model: Mapping[str, Any], vocab: Mapping[str, int], where: str) -> None:
    """Refuse an unknown-token rule that could fire: with all 256 byte characters in the vocabulary none can."""
    missing = [char for char in BYTE_OF_CHAR if char not in vocab]
    if missing and model.get("unk_token") is not None:
        raise ConfigError(f"{where}: model.unk_token is {kind(model['unk_token'])}, which GGUF cannot express")
    if missing:
        log.warning("%s: %d of the 256 byte tokens are missing; text that holds them loses them", where, len(missing))
