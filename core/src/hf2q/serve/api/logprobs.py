"""Which tokens a piece of content is made of, so that its log probabilities can go with it.

Text comes later than its tokens: characters are held back until they are whole, texts that may be stop strings until
that is clear, and reasoning, calls and their markers are taken out altogether. So tokens are kept by their place in
the text until the content at that place goes out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from hf2q.serve.events import Logprobs, TokenEvent
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.formats.tokenizer import Tokenizer

LOWEST = -9999.0
"""OpenAI's number for the logarithm of nothing; JSON has no infinity."""


class Placed(NamedTuple):
    """A token of a text: its id, what the model thought of it, and its characters' places in the answer."""

    token: int
    logprobs: Logprobs
    start: int
    end: int


class TokenPlaces:
    """The tokens of one answer, by their places. Feed events as they come; take what each piece of content is made of.

    All pieces' tokens together are those of the whole content, each once and in order.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool, ends: Collection[int]) -> None:
        """`ends` are the tokens that end an answer; they are no part of it."""
        self._decoder = tokenizer.stream(skip_special)
        self._ends = ends
        self._held: deque[Placed] = deque()
        self._length = 0
        self._text = ""
        self._base = 0

    def feed(self, event: TokenEvent) -> None:
        """Take note of an event's token, and of its text, which may be older tokens'."""
        if event.token is not None and event.logprobs is not None and event.token not in self._ends:
            start = self._length
            self._length += len(self._decoder.push(event.token))
            self._held.append(Placed(event.token, event.logprobs, start, self._length))
        self._text += event.text

    def take(self, content: str) -> list[Placed]:
        """The tokens of `content`, which went out of what was fed; whatever lies before it was no content."""
        if not content:
            return []
        # nothing was left out, or what was left out lies before it, and at most the beginning of a marker behind
        at = 0 if self._text.startswith(content) else self._text.rfind(content)
        if at < 0:
            at = max(0, len(self._text) - len(content))
        first, last = self._base + at, self._base + min(len(self._text), at + len(content))
        self._forward(last)
        found: list[Placed] = []
        while self._held and self._held[0].start < last:
            token = self._held.popleft()
            if token.end > first or (token.end == token.start and token.start >= first):
                found.append(token)
        return found

    def drop(self) -> None:
        """What was fed was no content."""
        last = self._base + len(self._text)
        self._forward(last)
        while self._held and self._held[0].start < last and self._held[0].end <= last:
            self._held.popleft()

    def _forward(self, to: int) -> None:
        self._text = self._text[to - self._base :]
        self._base = to


class TopLogprob(Record, frozen=True, kw_only=True):
    """One of the likeliest tokens at a place."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class TokenLogprob(Record, frozen=True, kw_only=True):
    """A token of the content, and the likeliest at its place."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None
    top_logprobs: tuple[TopLogprob, ...]


class ContentLogprobs(Record, frozen=True, kw_only=True):
    """`logprobs` of a chat's choice."""

    content: tuple[TokenLogprob, ...]
    refusal: None = None


def chat_logprobs(placed: list[Placed], tokenizer: Tokenizer) -> tuple[TokenLogprob, ...]:
    """Tokens in OpenAI's shape. A token alone may be no character: `bytes` of all of them, joined, are the text."""
    found = []
    for token, logprobs, _, _ in placed:
        own = _shown(tokenizer, token, logprobs.logprob)
        top = tuple(_shown(tokenizer, other, value) for other, value in logprobs.top)
        found.append(TokenLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=top))
    return tuple(found)


def _shown(tokenizer: Tokenizer, token: int, logprob: float) -> TopLogprob:
    data = tokenizer.token_bytes(token)
    return TopLogprob(
        token=data.decode("utf-8", "replace"), logprob=max(logprob, LOWEST), bytes=tuple(data) if data else None
    )
