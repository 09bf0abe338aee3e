"""`Generation`: one request, worked off in bounded steps by whoever drives it.

A step is a piece of the prompt or one token, so the driver can look up in between: for a cancellation, or for another
request's turn.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hf2q.errors import ContextLengthError
from hf2q.serve.events import GenerateRequest, Logprobs, Timings, TokenEvent, Usage
from hf2q.serve.sampling import Sampler, likeliest, log_probabilities
from hf2q.serve.sequence import token_ids
from hf2q.serve.text import TextStream

if TYPE_CHECKING:
    from hf2q.serve.model import Model
    from hf2q.types import Float32

PREFILL_CHUNK = 512
"""Prompt tokens in one step."""


def check_fits(request: GenerateRequest, context_length: int) -> None:
    """Refuse a prompt that leaves no room for an answer. Errors: ContextLengthError with both numbers."""
    tokens = len(request.prompt_ids)
    if tokens >= context_length:
        raise ContextLengthError(
            f"the prompt has {tokens} tokens; the model's context of {context_length} has room for at most "
            f"{context_length - 1} and one token of answer",
            hint="shorten the prompt",
            code="context_length_exceeded",
        )


class Generation:
    """Call `step` until `done`. The events of all steps are the answer; see `TokenEvent`.

    Errors: ContextLengthError, RequestError when it is made; what the backend raises, from `step`.
    """

    def __init__(self, model: Model, request: GenerateRequest, *, chunk: int = PREFILL_CHUNK) -> None:
        check_fits(request, model.context_length)
        token_ids(request.prompt_ids, model.n_vocab)
        self.request = request
        self.done = False
        never = model.tokenizer.suppressed_ids
        self._sampler = Sampler(request.sampling, request.prompt_ids, model.n_vocab, never)
        self._text = TextStream(model.tokenizer.stream(skip_special=request.skip_special), request.stop)
        self._ends = frozenset[int]() if request.ignore_eos else model.end_ids
        room = model.context_length - len(request.prompt_ids)
        self._limit = room if request.max_tokens is None else min(request.max_tokens, room)
        self._sequence = model.speculative() if request.speculative else model.sequence(request.images)
        self._chunk = chunk
        self._generated = 0
        self._last = -1
        self._created = self._started = self._first = time.perf_counter()

    def step(self) -> list[TokenEvent]:
        """Do the next piece of work."""
        if self.done:
            return []
        fed, prompt = self._sequence.position, self.request.prompt_ids
        if fed == 0:
            self._started = time.perf_counter()
        stop = self._sequence.cut(fed + self._chunk)
        if stop < len(prompt):
            self._sequence.prefill(prompt[fed:stop])
            return []
        ids = prompt[fed:] if fed < len(prompt) else (self._last,)
        logits = self._sequence.next_logits(ids)
        token = self._sampler.sample(logits)
        self._generated += 1
        if self._generated == 1:
            self._first = time.perf_counter()
        return self._take(token, self._logprobs(token, logits))

    def _logprobs(self, token: int, logits: Float32) -> Logprobs | None:
        count = self.request.logprobs
        if count is None:
            return None
        values = log_probabilities(logits)
        return Logprobs(
            logprob=float(values[token]),
            top=tuple((other, float(values[other])) for other in likeliest(logits, count)),
        )

    def _take(self, token: int, logprobs: Logprobs | None) -> list[TokenEvent]:
        self._last = token
        if token in self._ends:
            return [TokenEvent(token=token, logprobs=logprobs), self._end("stop")]
        event = TokenEvent(token=token, text=self._text.push(token), logprobs=logprobs)
        if self._text.stopped:
            return [event, self._end("stop")]
        if self._generated >= self._limit:
            return [event, self._end("length")]
        return [event]

    def cancel(self) -> list[TokenEvent]:
        """End now."""
        return [] if self.done else [self._end("cancelled")]

    def _end(self, reason: str) -> TokenEvent:
        self.done = True
        text = self._text.flush()
        if self._text.stopped and reason == "length":  # the last piece of text completed a stop string
            reason = "stop"
        return TokenEvent(text=text, finish_reason=reason, usage=self._usage(), timings=self._timings())

    def _usage(self) -> Usage:
        return Usage(prompt_tokens=len(self.request.prompt_ids), completion_tokens=self._generated)

    def _timings(self) -> Timings:
        now = time.perf_counter()
        first = self._first if self._generated else now
        return Timings(
            queue_seconds=self._started - self._created,
            prefill_seconds=first - self._started,
            decode_seconds=now - first,
            prefill_tokens=min(self._sequence.position, len(self.request.prompt_ids)),
            decode_tokens=max(0, self._generated - 1),
        )
