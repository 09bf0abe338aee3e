"""A response as it comes about, whole or as a stream of events. Both are made of the same output."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from hf2q.errors import RequestError
from hf2q.serve.api.answer import Answer, Piece
from hf2q.serve.api.errors import log_refusal, refusal
from hf2q.serve.api.responses_output import Event, Output
from hf2q.serve.api.responses_request import ResponsesRequest
from hf2q.serve.api.responses_schema import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseFailure,
    ResponseUsage,
    event,
)
from hf2q.serve.api.sse import DONE
from hf2q.serve.api.usage import Spent, usage_of
from hf2q.serve.sampling import SamplingParams

Ended = Callable[[Response], None]
"""Told of a response that has ended, before the client is."""


def begun(asked: ResponsesRequest, sampling: SamplingParams, id: str) -> Response:
    """The response before there is anything of it."""
    given = asked.given
    form = None if given.text is None else given.text.format
    reasoning = given.reasoning
    return Response(
        id=id,
        created_at=int(time.time()),
        model=asked.model,
        status="in_progress",
        instructions=given.instructions,
        max_output_tokens=given.max_output_tokens,
        metadata=given.metadata or {},
        parallel_tool_calls=given.parallel_tool_calls is not False,
        previous_response_id=given.previous_response_id,
        reasoning={"effort": None if reasoning is None else reasoning.effort, "summary": None},
        store=asked.stored,
        temperature=sampling.temperature,
        text={"format": {"type": "text"} if form is None else _set(form)},
        tool_choice=_choice(asked),
        tools=tuple({name: msgspec.json.decode(raw) for name, raw in tool.items()} for tool in given.tools or ()),
        top_logprobs=given.top_logprobs or 0,
        top_p=sampling.top_p,
        user=given.user,
    )


def _choice(asked: ResponsesRequest) -> Any:
    if asked.choice.name is not None:
        return {"type": "function", "name": asked.choice.name}
    return asked.choice.mode


def _set(given: Any) -> dict[str, Any]:
    """The fields that are set."""
    fields: dict[str, Any] = msgspec.to_builtins(given)
    return {name: value for name, value in fields.items() if value is not None}


def ended(response: Response, output: Output, last: Piece) -> tuple[Response, list[Event]]:
    """The response with all its output, and the events of its end."""
    cut = last.finish_reason == "length"
    events = output.end("incomplete" if cut else "completed")
    done = replace(
        response,
        status="incomplete" if cut else "completed",
        completed_at=None if cut else int(time.time()),
        incomplete_details=IncompleteDetails() if cut else None,
        output=tuple(output.items),
        usage=None if last.spent is None else _usage(last.spent),
    )
    return done, events


def _usage(spent: Spent) -> ResponseUsage:
    usage = usage_of([spent], per_prompt=1)
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.completion_tokens_details.reasoning_tokens),
        total_tokens=usage.total_tokens,
    )


async def collect(answer: Answer, response: Response, *, opaque: bool) -> Response:
    """The whole response. Errors: what the answer raises."""
    output = Output(opaque=opaque)
    piece = Piece()
    async for piece in answer.pieces():
        output.take(piece)
    return ended(response, output, piece)[0]


async def stream(
    answer: Answer, response: Response, id: str, *, opaque: bool, on_end: Ended
) -> AsyncGenerator[bytes, None]:
    """The response as events. One that fails ends with ``response.failed``. `id` is the request's, for the log."""
    output, number = Output(opaque=opaque), 0

    def frame(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return event(kind, number - 1, **fields)

    yield frame("response.created", response=response)
    yield frame("response.in_progress", response=response)
    try:
        piece = Piece()
        async for piece in answer.pieces():
            for kind, fields in output.take(piece):
                yield frame(kind, **fields)
        done, events = ended(response, output, piece)
    except Exception as error:
        found = refusal(error)
        log_refusal(id, found, None if isinstance(error, RequestError) else error)
        output.end("incomplete")
        told = ResponseFailure(code="server_error", message=found.body.error.message)
        done, events = replace(response, status="failed", error=told, output=tuple(output.items)), []
    for kind, fields in events:
        yield frame(kind, **fields)
    on_end(done)
    yield frame(f"response.{done.status}", response=done)
    if done.status != "failed":
        yield DONE
