"""What a response says it cost: token counts in OpenAI's shape, and times in hf2q's own."""

from __future__ import annotations

from collections.abc import Sequence

from hf2q.serve.events import Timings, TokenEvent
from hf2q.serve.events import Usage as EngineUsage
from hf2q.types import Record


class PromptTokensDetails(Record, frozen=True, kw_only=True):
    """Where prompt tokens came from."""

    cached_tokens: int = 0


class CompletionTokensDetails(Record, frozen=True, kw_only=True):
    """What completion tokens were spent on."""

    reasoning_tokens: int = 0


class Usage(Record, frozen=True, kw_only=True):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Timing(Record, frozen=True, kw_only=True):
    """Times of a generation, the longest of several: waiting, prompt, and tokens after the first."""

    queue_time_secs: float
    prefill_time_secs: float
    decode_time_secs: float
    total_time_secs: float
    time_to_first_token_ms: float
    prefill_tokens_per_sec: float
    decode_tokens_per_sec: float


class Spent(Record, frozen=True, kw_only=True):
    """What one choice cost."""

    usage: EngineUsage
    timings: Timings | None = None
    reasoning_tokens: int = 0

    @classmethod
    def of(cls, event: TokenEvent, reasoning_tokens: int = 0) -> Spent:
        """From the last event of a generation."""
        usage = event.usage or EngineUsage(prompt_tokens=0, completion_tokens=0)
        return cls(usage=usage, timings=event.timings, reasoning_tokens=reasoning_tokens)


def usage_of(spent: Sequence[Spent], *, per_prompt: int) -> Usage:
    """The counts of all choices together. The prompt of each `per_prompt` choices counts once."""
    prompts = [spent[first : first + per_prompt] for first in range(0, len(spent), per_prompt)]
    prompt = sum(one[0].usage.prompt_tokens for one in prompts)
    completion = sum(one.usage.completion_tokens for one in spent)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(min(choice.usage.cached_tokens for choice in one) for one in prompts)
        ),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=sum(one.reasoning_tokens for one in spent)),
    )


def timing_of(spent: Sequence[Spent]) -> Timing | None:
    """The times of the choice that took longest; None where the engine gave none."""
    known = [one.timings for one in spent if one.timings is not None]
    if not known:
        return None
    found = max(known, key=_total)
    return Timing(
        queue_time_secs=round(found.queue_seconds, 6),
        prefill_time_secs=round(found.prefill_seconds, 6),
        decode_time_secs=round(found.decode_seconds, 6),
        total_time_secs=round(_total(found), 6),
        time_to_first_token_ms=round(1000 * (found.queue_seconds + found.prefill_seconds), 3),
        prefill_tokens_per_sec=round(found.prefill_rate, 2),
        decode_tokens_per_sec=round(found.decode_rate, 2),
    )


def _total(timings: Timings) -> float:
    return timings.queue_seconds + timings.prefill_seconds + timings.decode_seconds
