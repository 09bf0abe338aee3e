"""`Continuation`: one choice of a completion as it is generated, after the prompt where that is to be echoed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

from hf2q.serve.api.answer import end_of
from hf2q.serve.api.logprobs import TokenPlaces
from hf2q.serve.api.text_logprobs import TextLogprobs, text_logprobs
from hf2q.serve.api.usage import Spent
from hf2q.serve.events import Logprobs, TokenEvent, Usage
from hf2q.serve.handle import Handle
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.serve.model import Model


class Part(Record, frozen=True, kw_only=True):
    """A piece of a choice; `finish_reason` and `spent` come together, in the last one."""

    text: str = ""
    logprobs: TextLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    spent: Spent | None = None


class Echo(Record, frozen=True, kw_only=True):
    """A prompt that is given back: its text, and what the model thought of its tokens, where that is asked for.

    tokens  id, log probabilities (None for the first), place in the text
    """

    text: str
    tokens: tuple[tuple[int, Logprobs | None, int], ...] | None = None


class Continuation:
    """Iterate over `parts` once; call `close` whatever happens.

    handle         the generation, None where nothing is to be generated
    prompt_tokens  of the prompt
    """

    def __init__(
        self, handle: Handle | None, model: Model, *, prompt_tokens: int, logprobs: bool, echo: Echo | None
    ) -> None:
        self._handle = handle
        self._tokenizer = model.tokenizer
        self._prompt_tokens = prompt_tokens
        self._echo = echo
        self._offset = len(echo.text) if echo is not None else 0
        self.has_logprobs = logprobs
        self._places = (
            TokenPlaces(model.tokenizer, skip_special=handle.request.skip_special, ends=model.end_ids)
            if logprobs and handle is not None
            else None
        )

    def close(self) -> None:
        """Nobody wants more of it."""
        if self._handle is not None:
            self._handle.cancel()

    async def parts(self) -> AsyncIterator[Part]:
        """The choice, in order. Errors: HttpRefusal 503 when the server ended it; Hf2qError when the engine failed."""
        if self._echo is not None:
            tokens = self._echo.tokens
            yield Part(
                text=self._echo.text, logprobs=None if tokens is None else text_logprobs(tokens, self._tokenizer)
            )
        if self._handle is None:
            usage = Usage(prompt_tokens=self._prompt_tokens, completion_tokens=0)
            yield Part(finish_reason="length", spent=Spent(usage=usage))
            return
        async for event in self._handle:
            logprobs = self._logprobs(event)
            if event.text or event.finish_reason is not None:
                reason = None if event.finish_reason is None else end_of(event)
                spent = None if reason is None else Spent.of(event)
                yield Part(text=event.text, logprobs=logprobs, finish_reason=reason, spent=spent)

    def _logprobs(self, event: TokenEvent) -> TextLogprobs | None:
        if self._places is None:
            return None
        self._places.feed(event)
        placed = self._places.take(event.text)
        if not placed:
            return None
        return text_logprobs([(one.token, one.logprobs, self._offset + one.start) for one in placed], self._tokenizer)
