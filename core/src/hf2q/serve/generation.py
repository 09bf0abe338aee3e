"""`Generation`: one request, worked off in bounded steps by whoever drives it.

A step is a piece of the prompt or one token, so the driver can look up in between: for a cancellation, or for another
request's turn. `step` does the next piece alone. A driver of several at once calls `feed` while a generation is
`prefilling`, feeds the `last` tokens of those that are past it together, and hands each its logits with `take`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from hf2q.errors import ContextLengthError
from hf2q.serve.constrained import Constrained
from hf2q.serve.events import GenerateRequest, Logprobs, Timings, TokenEvent, Usage
from hf2q.serve.sampling import Sampler, likeliest, log_probabilities
from hf2q.serve.sequence import token_ids
from hf2q.serve.text import TextStream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.serve.masks import MaskPool
    from hf2q.serve.model import Model
    from hf2q.serve.sequence import Sequence
    from hf2q.serve.speculate import SpeculativeSequence
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

    request         what was asked for
    prompt          its token ids, int32 (T,)
    tokens          those generated so far
    constrained     what holds it to a form, or None
    cached          tokens of the prompt that the sequence held when it began
    sequence        what they were fed to; None before the first step
    done            whether the last event is out

    Errors: ContextLengthError, RequestError, UsageError for speculation without a draft head, when it is made; what
    the backend raises, from `step`.
    """

    def __init__(self, model: Model, request: GenerateRequest, *, chunk: int = PREFILL_CHUNK) -> None:
        check_fits(request, model.context_length)
        self.request = request
        self.prompt = token_ids(request.prompt_ids, model.n_vocab)
        self.tokens: list[int] = []
        self.cached = 0
        self.sequence: Sequence | SpeculativeSequence | None = None
        self.done = False
        if request.speculative:
            model.speculative()  # refuses
        self._model = model
        never = model.tokenizer.suppressed_ids
        self._sampler = Sampler(request.sampling, request.prompt_ids, model.n_vocab, never)
        self.constrained = None if request.constraint is None else Constrained(request.constraint, model.n_vocab)
        self._text = TextStream(model.tokenizer.stream(skip_special=request.skip_special), request.stop)
        self._ends = frozenset[int]() if request.ignore_eos else model.end_ids
        room = model.context_length - len(self.prompt)
        self._limit = room if request.max_tokens is None else min(request.max_tokens, room)
        self._chunk = chunk
        self.created = self.started = self.first = time.perf_counter()

    # ------------------------------------------------------------------------------------------------ where it stands

    @property
    def begun(self) -> bool:
        """Whether it has a sequence."""
        return self.sequence is not None

    @property
    def position(self) -> int:
        """Tokens in the sequence."""
        sequence = self.sequence  # others look as well, while the worker changes it
        return 0 if sequence is None else sequence.position

    @property
    def left(self) -> int:
        """Tokens, of the prompt or generated, that must be fed before the next can be chosen."""
        return len(self.prompt) + len(self.tokens) - self.position

    @property
    def prefilling(self) -> bool:
        """Whether more is to be fed than the last generated token."""
        return not self.tokens or self.left > 1

    @property
    def remaining(self) -> int:
        """Tokens that it may still generate."""
        return self._limit - len(self.tokens)

    @property
    def last(self) -> int:
        """The token generated last."""
        return self.tokens[-1]

    def fed(self, start: int = 0, stop: int | None = None) -> NDArray[np.int32]:
        """Token ids of the sequence from `start` to `stop` (default: all that are fed)."""
        stop = self.position if stop is None else stop
        if stop <= len(self.prompt):
            return self.prompt[start:stop]
        return np.concatenate([self.prompt, np.array(self.tokens, np.int32)])[start:stop]

    # --------------------------------------------------------------------------------------------------------- steps

    def begin(self, sequence: Sequence | SpeculativeSequence | None = None) -> None:
        """Start, or start again after `forget`. `sequence` may hold a beginning of the tokens, and is taken over.

        Without one there is a new one, which computes ahead if the request wants it.
        """
        if sequence is None:
            speculative, images = self.request.speculative and not self.tokens, self.request.images
            sequence = self._model.speculative() if speculative else self._model.sequence(images)
        if self.started == self.created:
            self.started = time.perf_counter()
            self.cached = sequence.position
        self.sequence = sequence

    def forget(self) -> None:
        """Give the memory of the sequence back: all tokens so far are fed again after the next `begin`."""
        self.sequence = None

    def step(self) -> list[TokenEvent]:
        """Do the next piece of work, alone."""
        if self.done:
            return []
        if self.sequence is None or self.prefilling:
            return self.prefill()
        return self.take(self.sequence.next_logits((self.last,)))

    def prefill(self) -> list[TokenEvent]:
        """Feed the next piece; with the last, choose a token."""
        logits = self.feed()
        return [] if logits is None else self.take(logits)

    def feed(self, cuts: Iterable[int] = ()) -> Float32 | None:
        """Feed the next piece, at most up to the next of the positions `cuts`; with the last piece, logits (V,)."""
        if self.sequence is None:
            self.begin()
        sequence = self.sequence
        assert sequence is not None
        position, end = sequence.position, len(self.prompt) + len(self.tokens)
        stop = min([cut for cut in cuts if cut > position], default=end)
        stop = sequence.cut(min(position + self._chunk, stop, end))
        if stop < end:
            sequence.prefill(self.fed(position, stop))
            return None
        return sequence.next_logits(self.fed(position, end))

    def look_ahead(self, pool: MaskPool) -> None:
        """Have the constraint's next mask computed while the model works. Errors: Hf2qError, as the constraint's."""
        held = self.constrained
        if held is not None and held.later is None and not self.done and not held.complete:
            held.compute(pool)

    def take(self, logits: Float32) -> list[TokenEvent]:
        """Choose a token from the logits (V,) after all others, unless nothing may follow them.

        Errors: Hf2qError for logits that are no numbers, when the constraint allows no token, or fails.
        """
        allowed = None
        if self.constrained is not None:
            if self.constrained.later is None and self.constrained.complete:
                return [self._end("stop")]
            allowed = self.constrained.allowed()
        token = self._sampler.sample(logits, allowed)
        if not self.tokens:
            self.first = time.perf_counter()
        self.tokens.append(token)
        return self._taken(token, self._logprobs(token, logits))

    def _logprobs(self, token: int, logits: Float32) -> Logprobs | None:
        count = self.request.logprobs
        if count is None:
            return None
        values = log_probabilities(logits)
        return Logprobs(
            logprob=float(values[token]),
            top=tuple((other, float(values[other])) for other in likeliest(logits, count)),
        )

    def _taken(self, token: int, logprobs: Logprobs | None) -> list[TokenEvent]:
        if self.constrained is not None:
            self.constrained.accept(token)
        if token in self._ends:
            return [TokenEvent(token=token, logprobs=logprobs), self._end("stop")]
        event = TokenEvent(token=token, text=self._text.push(token), logprobs=logprobs)
        if self._text.stopped or (self.constrained is not None and self.constrained.complete):
            return [event, self._end("stop")]
        if len(self.tokens) >= self._limit:
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
        return TokenEvent(text=text, finish_reason=reason, usage=self._usage(), timings=self.timings())

    def _usage(self) -> Usage:
        return Usage(prompt_tokens=len(self.prompt), completion_tokens=len(self.tokens), cached_tokens=self.cached)

    def timings(self) -> Timings:
        """Seconds spent so far. `prefill_tokens` are those that were computed: not the cached ones."""
        now = time.perf_counter()
        started = self.started if self.started > self.created else now
        first = self.first if self.tokens else now
        return Timings(
            queue_seconds=started - self.created,
            prefill_seconds=first - started,
            decode_seconds=now - first,
            prefill_tokens=(len(self.prompt) if self.tokens else min(self.position, len(self.prompt))) - self.cached,
            decode_tokens=max(0, len(self.tokens) - 1),
        )
