"""`Answer`: the answer to one chat request as it is generated. Streams send its pieces, unary responses join them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from hf2q.serve.api.errors import HttpRefusal
from hf2q.serve.api.schema import CompletionTokensDetails, FinishReason, PromptTokensDetails, Usage
from hf2q.serve.chat import ReasoningSplitter
from hf2q.serve.events import TokenEvent
from hf2q.serve.handle import Handle
from hf2q.types import Record


class Piece(Record, frozen=True, kw_only=True):
    """A piece of an answer that holds something. `finish_reason` and `usage` come together, in the last one."""

    reasoning: str = ""
    content: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


class Answer:
    """Iterate over `pieces` once; call `close` whatever happens, which ends the generation if it still runs."""

    def __init__(self, handle: Handle, splitter: ReasoningSplitter) -> None:
        self._handle = handle
        self._splitter = splitter
        self._reasoning_tokens = 0

    def close(self) -> None:
        """Nobody wants more of it."""
        self._handle.cancel()

    async def pieces(self) -> AsyncIterator[Piece]:
        """The answer, in order.

        Errors: HttpRefusal 503 when the server ended it, Hf2qError when the engine failed.
        """
        async for event in self._handle:
            piece = self._piece(event)
            if piece.reasoning or piece.content or piece.finish_reason is not None:
                yield piece

    def _piece(self, event: TokenEvent) -> Piece:
        inside = self._splitter.reasoning
        reasoning, content = self._splitter.feed(event.text)
        if event.token is not None and (inside or self._splitter.reasoning):
            self._reasoning_tokens += 1
        if event.finish_reason is None:
            return Piece(reasoning=reasoning, content=content)
        rest = self._splitter.finish()
        return Piece(
            reasoning=reasoning + rest.reasoning,
            content=content + rest.content,
            finish_reason=_finish_reason(event),
            usage=self._usage(event),
        )

    def _usage(self, event: TokenEvent) -> Usage | None:
        if event.usage is None:
            return None
        return Usage(
            prompt_tokens=event.usage.prompt_tokens,
            completion_tokens=event.usage.completion_tokens,
            total_tokens=event.usage.total_tokens,
            prompt_tokens_details=PromptTokensDetails(),
            completion_tokens_details=CompletionTokensDetails(reasoning_tokens=self._reasoning_tokens),
        )


def _finish_reason(event: TokenEvent) -> FinishReason:
    if event.finish_reason == "stop":
        return "stop"
    if event.finish_reason == "length":
        return "length"
    # cancelled, though the client is still there: the server is being stopped
    raise HttpRefusal("the server is shutting down; the answer is not complete", status=503, code="shutting_down")
