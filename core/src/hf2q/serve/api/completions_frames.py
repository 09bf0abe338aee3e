"""The response to a request to continue texts, whole or as a stream. Both are made of the same pieces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from hf2q.errors import RequestError
from hf2q.serve.api.chat_frames import FINGERPRINT
from hf2q.serve.api.continuation import Continuation, Part
from hf2q.serve.api.errors import log_refusal, refusal
from hf2q.serve.api.merged import merged
from hf2q.serve.api.schema import encode
from hf2q.serve.api.sse import DONE, frame
from hf2q.serve.api.text_logprobs import TextLogprobs, joined
from hf2q.serve.api.usage import Spent, Timing, Usage, timing_of, usage_of
from hf2q.types import Record


class CompletionChoice(Record, frozen=True, kw_only=True):
    """A choice, or what a chunk adds to one; `finish_reason` is null in all chunks of it but the last."""

    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Completion(Record, frozen=True, kw_only=True):
    """A response, or a chunk of one; `usage` as in `hf2q.serve.api.schema.ChatChunk`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str = FINGERPRINT
    choices: tuple[CompletionChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    x_hf2q_timing: Timing | UnsetType = UNSET


class Envelope(Record, frozen=True, kw_only=True):
    """What all parts of one response have in common; `n` is the number of choices for each prompt."""

    id: str
    created: int
    model: str
    n: int

    def made(self, choices: Sequence[CompletionChoice], **more: Any) -> Completion:
        """A response or a chunk."""
        return Completion(id=self.id, created=self.created, model=self.model, choices=tuple(choices), **more)

    def told(self, spent: Sequence[Spent]) -> dict[str, Any]:
        """What it cost."""
        return {"usage": usage_of(spent, per_prompt=self.n), "x_hf2q_timing": timing_of(spent) or UNSET}


async def collect(answers: Sequence[Continuation], envelope: Envelope) -> Completion:
    """The whole answers as one response."""
    choices: list[CompletionChoice] = []
    spent: list[Spent] = []
    for index, answer in enumerate(answers):
        parts = [part async for part in answer.parts()]
        last = parts[-1]
        assert last.spent is not None
        known = [part.logprobs for part in parts if part.logprobs is not None]
        choices.append(
            CompletionChoice(
                text="".join(part.text for part in parts),
                index=index,
                logprobs=joined(known) if answer.has_logprobs else None,
                finish_reason=last.finish_reason,
            )
        )
        spent.append(last.spent)
    return envelope.made(choices, **envelope.told(spent))


async def stream(
    answers: Sequence[Continuation], envelope: Envelope, id: str, *, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The answers as frames, those of several choices as they come. `id` is for the log."""
    pending = None if include_usage else UNSET
    spent: list[Spent | None] = [None] * len(answers)
    try:
        async with aclosing(merged([answer.parts() for answer in answers])) as parts:
            async for index, part in parts:
                yield frame(encode(envelope.made([_choice(index, part)], usage=pending)))
                if part.spent is not None:
                    spent[index] = part.spent
    except Exception as error:
        found = refusal(error)
        log_refusal(id, found, None if isinstance(error, RequestError) else error)
        yield frame(encode(found.body))
        return
    if include_usage:
        yield frame(encode(envelope.made((), **envelope.told([one for one in spent if one is not None]))))
    yield DONE


def _choice(index: int, part: Part) -> CompletionChoice:
    return CompletionChoice(text=part.text, index=index, logprobs=part.logprobs, finish_reason=part.finish_reason)
