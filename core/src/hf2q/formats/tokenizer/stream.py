"""Incremental decoding: text as far as it is certain, never a part of a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Turns token ids into text one at a time; all pieces together are what decoding them at once gives.

    Bytes of an unfinished UTF-8 sequence are held back until it is complete or known to be invalid; each maximal
    invalid part becomes one U+FFFD. Not thread-safe: one decoder serves one stream.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], skipped: frozenset[int] = frozenset()) -> None:
        self._bytes = token_bytes
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Text that is certain after this token, "" when there is none yet. Errors: as `Tokenizer.token_bytes`."""
        data = self._bytes(token)
        return "" if token in self._skipped else self._decoder.decode(data)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, else "". The decoder can be used again."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
