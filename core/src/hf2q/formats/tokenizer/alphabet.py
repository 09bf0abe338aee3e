"""The byte-level alphabet: a vocabulary of byte strings, written with printable characters.

Bytes that are printable in Latin-1 stand for themselves; the other 68 are written as U+0100 and up, in order, so that a
space is U+0120 (``Ġ``). Source: GPT-2 `encoder.py`, `bytes_to_unicode`; tokenizers `pre_tokenizers/byte_level.rs`.
"""

from __future__ import annotations

from types import MappingProxyType


def _alphabet() -> dict[int, str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {byte: chr(byte) for byte in printable}
    table.update({byte: chr(0x100 + place) for place, byte in enumerate(b for b in range(256) if b not in printable)})
    return table


CHAR_OF_BYTE = MappingProxyType(_alphabet())
BYTE_OF_CHAR = MappingProxyType({char: byte for byte, char in CHAR_OF_BYTE.items()})

SPLIT_REGEX = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What a ``ByteLevel`` step with ``use_regex`` splits by. Source: tokenizers `pre_tokenizers/byte_level.rs`, `RE`."""


def token_bytes(text: str) -> bytes:
    """The bytes that a vocabulary entry stands for.

    An entry with a character outside the alphabet stands for its own UTF-8 bytes, as in tokenizers
    `pre_tokenizers/byte_level.rs`, `decode_chain`.
    """
    try:
        return bytes([BYTE_OF_CHAR[char] for char in text])
    except KeyError:
        return text.encode("utf-8", "surrogatepass")
