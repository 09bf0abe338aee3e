"""The tokens of a vocabulary by id, and what they stand for."""

from __future__ import annotations

from hf2q.errors import RequestError
from hf2q.formats.tokenizer.spelling import ByteLevel
from hf2q.formats.tokenizer.stream import Decoder
from hf2q.formats.tokenizer.texts import Texts


class TokenTable:
    """Texts and types of all tokens, and what they stand for. Every method raises RequestError for an unknown id."""

    def __init__(self, texts: Texts, types: bytes, spelling: ByteLevel) -> None:
        self._texts, self._types, self._spelling = texts, types, spelling

    def __len__(self) -> int:
        return len(self._types)

    def kind(self, token: int) -> int:
        """The token's type."""
        if not 0 <= token < len(self._types):
            raise RequestError(f"token id {token} is outside the vocabulary of {len(self)} tokens")
        return self._types[token]

    def text(self, token: int) -> str:
        """The token as the vocabulary writes it."""
        self.kind(token)
        return self._texts.text(token)

    def data(self, token: int) -> bytes:
        """The bytes that it adds to a text, none for an unused one."""
        return self._spelling.data(self.text(token), self._types[token])

    def decoder(self, skipped: frozenset[int]) -> Decoder:
        """A decoder for one stream of ids, for which those in `skipped` stand for nothing."""
        return self._spelling.decoder(self, skipped)
