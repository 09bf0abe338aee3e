"""Requests and events of generation: the records between the engine and whoever asks it. Imports nothing heavy."""

from __future__ import annotations

from hf2q.errors import RequestError
from hf2q.serve.sampling import SamplingParams, is_whole
from hf2q.types import Record


class GenerateRequest(Record, frozen=True, kw_only=True):
    """What to generate.

    prompt_ids    token ids, at least one
    sampling      how to choose tokens
    max_tokens    most tokens to generate, the one that ends the generation included; None leaves it to the context
    stop          texts that end the generation; nothing of the one found is given out
    ignore_eos    go on after tokens that end a generation (their text is given out unless special)
    skip_special  leave the text of control tokens out
    id            for the log

    Errors: RequestError naming the field.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    skip_special: bool = True
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
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise RequestError(f"a stop text is {text!r:.60}, expected text that is not empty", param="stop")


class Usage(Record, frozen=True, kw_only=True):
    """Tokens that went in and came out; the token that ended the generation counts as one that came out."""

    prompt_tokens: int
    completion_tokens: int

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


class TokenEvent(Record, frozen=True, kw_only=True):
    """One step of a generation.

    Each generated token makes one event; a last one without a token says why the generation ended. The texts of all
    events, joined, are the answer: a token's own text may come with a later event, when it is known to be complete
    characters and no part of a stop string.

    text           text that became certain, often ""
    token          the token id, None in the last event
    finish_reason  in the last event: "stop" (an end token or a stop text), "length" (max_tokens or the context) or
                   "cancelled"; else None
    usage, timings in the last event, else None
    """

    text: str = ""
    token: int | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None
