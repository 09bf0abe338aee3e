"""What BERT's WordPiece takes for granted: the mark inside words, ids that files leave out, tidying of decoded text."""

from __future__ import annotations

from types import MappingProxyType

from hf2q.formats.tokenizer.special import ID_KEYS

CONTINUATION = "##"
"""What a piece begins with that continues a word."""

DEFAULT_IDS = MappingProxyType(
    {ID_KEYS["bos"]: 101, ID_KEYS["unk"]: 100, ID_KEYS["sep"]: 102, ID_KEYS["pad"]: 0, ID_KEYS["mask"]: 103}
)
"""Ids of the first BERT, which hold where a file names none. Source: llama.cpp src/llama-vocab.cpp, `load`."""

_TIDIED = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def clean_up(text: str) -> str:
    """`text` without the spaces that English does not have. Source: tokenizers `decoders/wordpiece.rs`, `cleanup`."""
    for old, new in _TIDIED:
        text = text.replace(old, new)
    return text
