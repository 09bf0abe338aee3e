"""The tokenizer files of a checkpoint, opened and parsed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hf2q.errors import ConfigError
from hf2q.formats.tokenizer.files import MAX_JSON_BYTES, doubled_name, read_bounded, read_object


class TokenizerSource(msgspec.Struct, frozen=True, kw_only=True):
    """Parsed files; those that a checkpoint need not have are empty when absent.

    tokenizer     ``tokenizer.json``
    settings      ``tokenizer_config.json``
    special_map   ``special_tokens_map.json``
    extra_tokens  ``added_tokens.json``
    config        ``config.json``, whole
    """

    directory: Path
    tokenizer: Mapping[str, Any]
    settings: Mapping[str, Any]
    special_map: Mapping[str, Any]
    extra_tokens: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def where(self) -> str:
        """The directory, for messages."""
        return str(self.directory)

    @property
    def path(self) -> str:
        """``tokenizer.json``, for messages."""
        return str(self.directory / "tokenizer.json")


def open_tokenizer(directory: Path, config: Mapping[str, Any]) -> TokenizerSource:
    """Read the tokenizer files in `directory`.

    Errors: MissingFileError without ``tokenizer.json``; FormatError for broken JSON; ConfigError for what is no object,
    and for a vocabulary that has two entries of one text.
    """
    path = directory / "tokenizer.json"
    hint = "save the tokenizer in its fast form, e.g. AutoTokenizer.from_pretrained(SRC).save_pretrained(SRC)"
    tokenizer = read_object(path, required=True, hint=hint) or {}
    doubled = doubled_name(read_bounded(path, MAX_JSON_BYTES) or b"", "model", "vocab")
    if doubled is not None:
        raise ConfigError(f"{path}: model.vocab has two entries {doubled!r}")
    return TokenizerSource(
        directory=directory,
        tokenizer=tokenizer,
        settings=read_object(directory / "tokenizer_config.json") or {},
        special_map=read_object(directory / "special_tokens_map.json") or {},
        extra_tokens=read_object(directory / "added_tokens.json") or {},
        config=config,
    )
