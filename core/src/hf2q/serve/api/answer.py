"""`Answer`: one choice as it is generated. Streams send its pieces, unary responses join them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

import msgspec

from hf2q.serve.api.errors import HttpRefusal
from hf2q.serve.api.logprobs import TokenLogprob, TokenPlaces, chat_logprobs
from hf2q.serve.api.schema import FinishReason
from hf2q.serve.api.usage import Spent
from hf2q.serve.chat.deltas import AnswerDelta, AnswerParser, CallDelta
from hf2q.serve.events import TokenEvent
from hf2q.serve.handle import Handle
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.serve.model import Model


class Piece(Record, frozen=True, kw_only=True):
    """A piece of an answer that holds something. `finish_reason` and `spent` come together, in the last one.

    logprobs  of the tokens of `content`, None where they are not asked for
    """

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    spent: Spent | None = None


class Answer:
    """Iterate over `pieces` once; call `close` whatever happens, which ends the generation if it still runs."""

    def __init__(self, handle: Handle, parser: AnswerParser, model: Model) -> None:
        self._handle = handle
        self._parser = parser
        self._tokenizer = model.tokenizer
        self._ends = model.end_ids
        self._reasoning_tokens = 0
        self._last: int | None = None
        self._arguments: dict[int, str] = {}
        asked = handle.request
        self._places = (
            None
            if asked.logprobs is None
            else TokenPlaces(model.tokenizer, skip_special=asked.skip_special, ends=model.end_ids)
        )

    @property
    def has_logprobs(self) -> bool:
        """Whether they were asked for."""
        return self._places is not None

    def close(self) -> None:
        """Nobody wants more of it."""
        self._handle.cancel()

    async def pieces(self) -> AsyncIterator[Piece]:
        """The answer, in order.

        Errors: HttpRefusal 503 when the server ended it; Hf2qError when the engine failed, or when it is not what was
        required.
        """
        async for event in self._handle:
            piece = self._piece(event)
            if piece.reasoning or piece.content or piece.calls or piece.finish_reason is not None:
                yield piece

    def _piece(self, event: TokenEvent) -> Piece:
        inside = self._parser.reasoning
        delta = self._parser.feed(event.text)
        self._last = self._last if event.token is None else event.token
        if event.token is not None and (inside or self._parser.reasoning):
            self._reasoning_tokens += 1
        reason: FinishReason | None = None if event.finish_reason is None else end_of(event)
        # a stop text ends an answer from outside, wherever the model is
        cut = reason == "length" or self._last not in self._ends
        if reason is not None:
            delta = _joined(delta, self._parser.finish(cut=cut))
        for call in delta.calls:
            self._arguments[call.index] = self._arguments.get(call.index, "") + call.arguments
        if reason == "stop" and self._parser.called and not (cut and self._broken):
            reason = "tool_calls"
        return Piece(
            reasoning=delta.reasoning,
            content=delta.content,
            calls=delta.calls,
            logprobs=self._logprobs(event, delta, inside),
            finish_reason=reason,
            spent=None if reason is None else Spent.of(event, self._reasoning_tokens),
        )

    @property
    def _broken(self) -> bool:
        """Whether the last call ends in the middle."""
        try:
            msgspec.json.decode(self._arguments[max(self._arguments)])
        except (msgspec.DecodeError, ValueError):
            return True
        return False

    def _logprobs(self, event: TokenEvent, delta: AnswerDelta, inside: bool) -> tuple[TokenLogprob, ...] | None:
        if self._places is None:
            return None
        self._places.feed(event)
        if delta.content:
            return chat_logprobs(self._places.take(delta.content), self._tokenizer)
        if delta.reasoning or delta.calls or inside or self._parser.reasoning:
            self._places.drop()
        return None


def end_of(event: TokenEvent) -> Literal["stop", "length"]:
    """Why a generation ended. Errors: HttpRefusal 503 when it was cancelled."""
    if event.finish_reason == "stop":
        return "stop"
    if event.finish_reason == "length":
        return "length"
    # cancelled, though the client is still there: the server is being stopped
    raise HttpRefusal("the server is shutting down; the answer is not complete", status=503, code="shutting_down")


def _joined(first: AnswerDelta, second: AnswerDelta) -> AnswerDelta:
    return AnswerDelta(
        first.reasoning + second.reasoning, first.content + second.content, (*first.calls, *second.calls)
    )
