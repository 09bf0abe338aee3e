"""Requests and events of generation: the records between the engine and whoever asks it. Imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf2q.errors import RequestError
from hf2q.serve.sampling import SamplingParams, is_whole
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.backends.media import PlacedImage
    from hf2q.serve.chat.deltas import CallDelta
    from hf2q.serve.constraint import Constraint


MOST_LOGPROBS = 20
"""Of the likeliest tokens at each place; OpenAI's limit."""


class GenerateRequest(Record, frozen=True, kw_only=True):
    """What to generate.

    prompt_ids    token ids, at least one
    images        those that stand in for some of these, by their positions; see `hf2q.serve.vision.Vision.place`
    sampling      how to choose tokens
    max_tokens    most tokens to generate, the one that ends the generation included; None leaves it to the context
    stop          texts that end the generation; nothing of the one found is given out
    ignore_eos    go on after tokens that end a generation (their text is given out unless special)
    skip_special  leave the text of control tokens out
    logprobs      give each token's log probability, and those of so many of the likeliest tokens (0 to 20); None: none.
                  They are the model's own, whatever the sampling is
    speculative   compute ahead on guesses of the model's draft head: the same answer, sooner where guesses are good
    constraint    holds the answer to a form; a fresh one, which this generation uses up
    scope         who may share what was computed for the beginning of the prompt: requests with equal scopes. None
                  shares nothing
    id            for the log

    Errors: RequestError naming the field.
    """

    prompt_ids: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    skip_special: bool = True
    logprobs: int | None = None
    speculative: bool = False
    constraint: Constraint | None = None
    scope: str | None = None
    id: str = ""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise RequestError("the prompt has no tokens", param="prompt")
        if not isinstance(self.sampling, SamplingParams):
            raise RequestError(f"sampling is {self.sampling!r:.60}, expected SamplingParams", param="sampling")
        limit = self.max_tokens
        if limit is not None and not (is_whole(limit) and limit >= 1):
            raise RequestError(
                f"max_tokens is {limit!r:.60}, expected a whole number of at least 1", param="max_tokens"
            )
        if self.logprobs is not None and not (is_whole(self.logprobs) and 0 <= self.logprobs <= MOST_LOGPROBS):
            raise RequestError(
                f"logprobs is {self.logprobs!r:.60}, expected a whole number from 0 to {MOST_LOGPROBS}",
                param="logprobs",
            )
        if self.speculative and self.images:
            raise RequestError("speculation is for prompts of text alone, not for images", param="speculative")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise RequestError(f"a stop text is {text!r:.60}, expected text that is not empty", param="stop")


class Usage(Record, frozen=True, kw_only=True):
    """Tokens that went in and came out; the token that ended the generation counts as one that came out.

    cached_tokens  of the prompt: those whose state was there already
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


class Timings(Record, frozen=True, kw_only=True):
    """Seconds spent: waiting in the queue, on the prompt up to the first token, and on the tokens after it."""

    prefill_seconds: float
    decode_seconds: float
    prefill_tokens: int
    decode_tokens: int
    queue_seconds: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second, 0 when nothing was measured."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds > 0 else 0.0

    @property
    def decode_rate(self) -> float:
        """Generated tokens per second after the first, 0 when there was none."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0


class Logprobs(Record, frozen=True, kw_only=True):
    """What the model thought of one generated token: natural logarithms of probabilities, before any sampling setting.

    logprob  of the token itself
    top      the likeliest tokens and theirs, descending; the generated one need not be among them
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenEvent(Record, frozen=True, kw_only=True):
    """One step of a generation.

    Each generated token makes one event; a last one without a token says why the generation ended. The texts of all
    events, joined, are the answer: a token's own text may come with a later event, when it is known to be complete
    characters and no part of a stop string.

    text           text that became certain, often ""
    token          the token id, None in the last event
    logprobs       of the token, where the request asked for them
    finish_reason  in the last event: "stop" (an end token or a stop text), "length" (max_tokens or the context) or
                   "cancelled"; else None
    usage, timings in the last event, else None
    """

    text: str = ""
    token: int | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None


class ChatEvent(TokenEvent, frozen=True, kw_only=True):
    """As `TokenEvent`, of an answer in a dialogue: `text` is of the answer, `reasoning` of what led to it, `calls` are
    pieces of calls of tools. The `finish_reason` may be "tool_calls" besides: the answer ended where results of its
    calls are awaited.
    """

    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
