"""What the tokens of each GGUF model stand for: in the merging vocabulary, as bytes, and in a text that grows.

ByteLevel      ``gpt2``: characters of the byte-level alphabet
ByteFallback   ``gemma4``: text with U+2581 for spaces, and tokens that are one byte
WordPieces     ``bert``: words begin with U+2581, what continues one does not
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf2q.formats.tokenizer.alphabet import token_bytes
from hf2q.formats.tokenizer.models import BERT, GEMMA4
from hf2q.formats.tokenizer.steps import SPACE
from hf2q.formats.tokenizer.stream import ByteRunDecoder, Decoder, StreamDecoder, WordDecoder
from hf2q.formats.tokenizer.vocabulary import BYTE, NORMAL, UNUSED, USER_DEFINED
from hf2q.formats.tokenizer.wordpiece import CONTINUATION, clean_up

if TYPE_CHECKING:
    from hf2q.formats.tokenizer.table import TokenTable


class ByteLevel:
    """A token's text is its bytes in the byte-level alphabet; special tokens stand for themselves."""

    def merged(self, text: str, kind: int) -> str:
        """The token as the merging vocabulary of the `tokenizers` library writes it."""
        return text

    def data(self, text: str, kind: int) -> bytes:
        """The bytes that a token of this text and type adds to a text, none for an unused one."""
        if kind == UNUSED:
            return b""
        return token_bytes(text) if kind in (NORMAL, BYTE) else text.encode("utf-8", "surrogatepass")

    def decoder(self, tokens: TokenTable, skipped: frozenset[int]) -> Decoder:
        """A decoder for one stream of ids."""
        return StreamDecoder(tokens.data, skipped)


class ByteFallback(ByteLevel):
    """A token's text is plain, with U+2581 for spaces; ``<0x0A>`` is one byte.

    Source: tokenizers `decoders/byte_fallback.rs`, and the decoder of a Gemma ``tokenizer.json``.
    """

    def data(self, text: str, kind: int) -> bytes:
        if kind == UNUSED:
            return b""
        if kind == BYTE:
            return bytes([int(text[3:5], 16)])
        return text.replace(SPACE, " ").encode("utf-8", "surrogatepass")

    def decoder(self, tokens: TokenTable, skipped: frozenset[int]) -> Decoder:
        return ByteRunDecoder(tokens.data, lambda token: tokens.kind(token) == BYTE, skipped)


class WordPieces(ByteLevel):
    """Words are preceded by a space unless they begin a text. Source: tokenizers `decoders/wordpiece.rs`."""

    def merged(self, text: str, kind: int) -> str:
        if kind == USER_DEFINED:
            return text.removeprefix(SPACE)
        if kind != NORMAL:
            return text
        return text[1:] if text.startswith(SPACE) and text != SPACE else CONTINUATION + text

    def data(self, text: str, kind: int) -> bytes:
        word = self.merged(text, kind)
        if kind == UNUSED:
            return b""
        spaced = word.removeprefix(CONTINUATION) if word.startswith(CONTINUATION) else " " + word
        return clean_up(spaced).encode("utf-8", "surrogatepass")

    def decoder(self, tokens: TokenTable, skipped: frozenset[int]) -> Decoder:
        def first(token: int) -> bytes:
            return clean_up(self.merged(tokens.text(token), tokens.kind(token))).encode("utf-8", "surrogatepass")

        return WordDecoder(tokens.data, first, lambda token: token in skipped or tokens.kind(token) == UNUSED)


def spelling_of(model: str) -> ByteLevel:
    """The spelling of a GGUF tokenizer model."""
    return {GEMMA4: ByteFallback, BERT: WordPieces}.get(model, ByteLevel)()
