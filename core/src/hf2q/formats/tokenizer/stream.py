"""Incremental decoding: text as far as it is certain, never a part of a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Protocol


class Decoder(Protocol):
    """Turns token ids into text one at a time; all pieces together are what decoding them at once gives.

    Not thread-safe: one decoder serves one stream.
    """

    def push(self, token: int) -> str:
        """Text that is certain after this token, "" when there is none yet. Errors: RequestError for an unknown id."""
        ...

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, else "". The decoder can be used again."""
        ...


class StreamDecoder:
    """A `Decoder` for tokens that are bytes, whatever the limits of characters.

    Bytes of an unfinished UTF-8 sequence are held back until it is complete or known to be invalid; each maximal
    invalid part becomes one U+FFFD. The text of `skipped` ids is left out.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], skipped: frozenset[int] = frozenset()) -> None:
        self._bytes = token_bytes
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        data = self._bytes(token)
        return "" if token in self._skipped else self._decoder.decode(data)

    def flush(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class ByteRunDecoder:
    """A `Decoder` for tokens that are whole characters, but for some that are one byte (`is_byte`).

    The bytes of a run of those are held back until it ends, because they become text together or not at all: when the
    run is not valid UTF-8, each byte becomes U+FFFD. Source: tokenizers `decoders/byte_fallback.rs`.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        is_byte: Callable[[int], bool],
        skipped: frozenset[int] = frozenset(),
    ) -> None:
        self._bytes = token_bytes
        self._is_byte = is_byte
        self._skipped = skipped
        self._run = bytearray()

    def push(self, token: int) -> str:
        data = self._bytes(token)
        if token in self._skipped or not data:
            return ""
        if self._is_byte(token):
            self._run += data
            return ""
        return self.flush() + data.decode("utf-8", "replace")

    def flush(self) -> str:
        run, self._run = bytes(self._run), bytearray()
        try:
            return run.decode("utf-8")
        except UnicodeDecodeError:
            return "\ufffd" * len(run)


class WordDecoder:
    """A `Decoder` for tokens that are words, or parts of words, and need a space between them but not in front.

    token_bytes  what a token adds to a text; `first` what it is at the beginning
    left_out     whether a token stands for nothing
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], first: Callable[[int], bytes], left_out: Callable[[int], bool]
    ) -> None:
        self._bytes = token_bytes
        self._first = first
        self._left_out = left_out
        self._begun = False

    def push(self, token: int) -> str:
        if self._left_out(token):
            return ""
        data = self._bytes(token) if self._begun else self._first(token)
        self._begun = True
        return data.decode("utf-8", "replace")

    def flush(self) -> str:
        self._begun = False
        return ""
