"""The tokens of a vocabulary by id, checked, and kept small: a str for each would take several times as much."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from hf2q.errors import RequestError
from hf2q.formats.tokenizer.spelling import ByteLevel
from hf2q.formats.tokenizer.stream import Decoder


class TokenTable:
    """Texts and types of all tokens, and what they stand for. Every method raises RequestError for an unknown id."""

    def __init__(self, texts: Sequence[str], types: Sequence[int], spelling: ByteLevel) -> None:
        self._texts = "".join(texts)
        self._ends = array("I", accumulate(map(len, texts), initial=0))
        self._types, self._spelling = bytes(types), spelling

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
        return self._texts[self._ends[token] : self._ends[token + 1]]

    def data(self, token: int) -> bytes:
        """The bytes that it adds to a text, none for an unused one."""
        return self._spelling.data(self.text(token), self._types[token])

    def decoder(self, skipped: frozenset[int]) -> Decoder:
        """A decoder for one stream of ids, for which those in `skipped` stand for nothing."""
        return self._spelling.decoder(self, skipped)
