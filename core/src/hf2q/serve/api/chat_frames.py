"""The response to a chat request, whole or as a stream. Both are made of the same pieces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import UNSET

import hf2q
from hf2q.errors import RequestError
from hf2q.serve.api.answer import Answer, Piece
from hf2q.serve.api.errors import log_refusal, refusal
from hf2q.serve.api.logprobs import ContentLogprobs, TokenLogprob
from hf2q.serve.api.merged import merged
from hf2q.serve.api.schema import (
    AssistantMessage,
    CalledFunction,
    ChatChunk,
    ChatCompletion,
    Choice,
    ChunkChoice,
    ChunkDelta,
    FunctionChunk,
    ToolCallChunk,
    ToolCallItem,
    encode,
)
from hf2q.serve.api.sse import DONE, frame
from hf2q.serve.api.usage import Spent, timing_of, usage_of
from hf2q.serve.chat.deltas import CallDelta
from hf2q.types import Record

FINGERPRINT = f"hf2q-{hf2q.__version__}"


class Envelope(Record, frozen=True, kw_only=True):
    """What all parts of one response have in common."""

    id: str
    created: int
    model: str

    def completion(self, choices: Sequence[Choice], spent: Sequence[Spent]) -> ChatCompletion:
        """A unary response."""
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=tuple(choices),
            usage=usage_of(spent, per_prompt=len(choices)),
            system_fingerprint=FINGERPRINT,
            x_hf2q_timing=timing_of(spent) or UNSET,
        )

    def chunk(self, *choices: ChunkChoice, usage: Any = UNSET, timing: Any = UNSET) -> bytes:
        """A frame of a stream."""
        chunk = ChatChunk(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage,
            system_fingerprint=FINGERPRINT,
            x_hf2q_timing=timing,
        )
        return frame(encode(chunk))


async def collect(answers: Sequence[Answer], envelope: Envelope) -> ChatCompletion:
    """The whole answers as one response."""
    found = [await _whole(index, answer) for index, answer in enumerate(answers)]
    return envelope.completion([choice for choice, _ in found], [spent for _, spent in found])


async def _whole(index: int, answer: Answer) -> tuple[Choice, Spent]:
    """One choice. What has come meanwhile of the others waits in their handles."""
    pieces = [piece async for piece in answer.pieces()]
    last = pieces[-1]
    assert last.finish_reason is not None
    assert last.spent is not None
    content = "".join(piece.content for piece in pieces)
    calls = _calls([call for piece in pieces for call in piece.calls])
    message = AssistantMessage(
        content=content or None if calls else content,
        reasoning_content="".join(piece.reasoning for piece in pieces) or UNSET,
        tool_calls=calls or UNSET,
    )
    known = [token for piece in pieces if piece.logprobs is not None for token in piece.logprobs]
    choice = Choice(
        index=index,
        message=message,
        finish_reason=last.finish_reason,
        logprobs=_logprobs(tuple(known)) if answer.has_logprobs else None,
    )
    return choice, last.spent


def _calls(deltas: Sequence[CallDelta]) -> tuple[ToolCallItem, ...]:
    found: dict[int, tuple[str, str, list[str]]] = {}
    for delta in deltas:
        if delta.id is not None:
            found[delta.index] = (delta.id, delta.name or "", [])
        found[delta.index][2].append(delta.arguments)
    return tuple(
        ToolCallItem(id=id, function=CalledFunction(name=name, arguments="".join(arguments)))
        for _, (id, name, arguments) in sorted(found.items())
    )


def _logprobs(tokens: tuple[TokenLogprob, ...] | None) -> ContentLogprobs | None:
    return None if tokens is None else ContentLogprobs(content=tokens)


async def stream(
    answers: Sequence[Answer], envelope: Envelope, id: str, *, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The answers as frames, those of several choices as they come.

    Once the first is out, an error can only be told in the last. `id` is for the log.
    """
    # null in every frame but the last, so that readers can tell that it will come
    pending = None if include_usage else UNSET
    spent: list[Spent | None] = [None] * len(answers)
    for index in range(len(answers)):  # index 0 first: the official client counts on it
        yield envelope.chunk(ChunkChoice(index=index, delta=ChunkDelta(role="assistant", content="")), usage=pending)
    try:
        async with aclosing(merged([answer.pieces() for answer in answers])) as pieces:
            async for index, piece in pieces:
                for choice in _chunks(index, piece):
                    yield envelope.chunk(choice, usage=pending)
                if piece.spent is not None:
                    spent[index] = piece.spent
    except Exception as error:
        found = refusal(error)
        log_refusal(id, found, None if isinstance(error, RequestError) else error)
        yield frame(encode(found.body))
        return
    if include_usage:
        known = [one for one in spent if one is not None]
        yield envelope.chunk(usage=usage_of(known, per_prompt=len(known)), timing=timing_of(known) or UNSET)
    yield DONE


def _chunks(index: int, piece: Piece) -> list[ChunkChoice]:
    """What a stream sends of a piece."""
    found: list[ChunkChoice] = []
    if piece.reasoning:
        found.append(ChunkChoice(index=index, delta=ChunkDelta(reasoning_content=piece.reasoning)))
    if piece.content:
        logprobs = _logprobs(piece.logprobs)
        found.append(ChunkChoice(index=index, delta=ChunkDelta(content=piece.content), logprobs=logprobs))
    found += [
        ChunkChoice(index=index, delta=ChunkDelta(tool_calls=(chunk,)))
        for call in piece.calls
        for chunk in _call_chunks(call)
    ]
    if piece.finish_reason is not None:
        found.append(ChunkChoice(index=index, delta=ChunkDelta(), finish_reason=piece.finish_reason))
    return found


def _call_chunks(call: CallDelta) -> list[ToolCallChunk]:
    """A call opens with its id, type and name, once and without arguments; pieces of arguments follow."""
    found: list[ToolCallChunk] = []
    if call.id is not None:
        opener = FunctionChunk(name=call.name or "", arguments="")
        found.append(ToolCallChunk(index=call.index, id=call.id, type="function", function=opener))
    if call.arguments:
        found.append(ToolCallChunk(index=call.index, function=FunctionChunk(arguments=call.arguments)))
    return found
