"""``POST /v1/chat/completions``: a request becomes a generation, and that a response, whole or as a stream.

Both are made of the same pieces. Stop strings act on the text as the model writes it, reasoning and its markers
included. Everything that can be refused is refused before the first byte of a stream.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from litestar import Request, post
from litestar.response.base import ASGIResponse
from msgspec import UNSET

import hf2q
from hf2q.errors import RequestError
from hf2q.serve.api.answer import Answer
from hf2q.serve.api.body import read_body
from hf2q.serve.api.chat_request import ChatRequest, parse_chat_request
from hf2q.serve.api.disconnect import ClientGone, while_connected
from hf2q.serve.api.errors import log_refusal, refusal
from hf2q.serve.api.request_id import request_id
from hf2q.serve.api.schema import (
    AssistantMessage,
    ChatChunk,
    ChatCompletion,
    Choice,
    ChunkChoice,
    ChunkDelta,
    Usage,
    encode,
)
from hf2q.serve.api.service import Service
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.api.sse import DONE, EventStream, frame
from hf2q.serve.chat import Chat, Prompt
from hf2q.serve.engine import Engine
from hf2q.serve.events import GenerateRequest
from hf2q.types import Record

FINGERPRINT = f"hf2q-{hf2q.__version__}"
_NOBODY = 499  # nginx's code for a client that has gone; nobody receives it


class Envelope(Record, frozen=True, kw_only=True):
    """What all parts of one response have in common."""

    id: str
    created: int
    model: str

    def completion(self, message: AssistantMessage, reason: Any, usage: Usage) -> ChatCompletion:
        """A unary response."""
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=(Choice(message=message, finish_reason=reason),),
            usage=usage,
            system_fingerprint=FINGERPRINT,
        )

    def chunk(self, *choices: ChunkChoice, usage: Any = UNSET) -> bytes:
        """A frame of a stream."""
        chunk = ChatChunk(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage,
            system_fingerprint=FINGERPRINT,
        )
        return frame(encode(chunk))


@post("/v1/chat/completions", status_code=200)
async def chat_completions(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Answer a conversation."""
    service: Service = request.app.state.service
    settings: ApiSettings = request.app.state.settings
    engine, chat = service.require()
    try:
        body = await read_body(request, settings.max_body)
    except ClientGone:
        return ASGIResponse(status_code=_NOBODY)
    # a long conversation takes a while: not in the event loop's thread
    asked, generate, prompt = await asyncio.to_thread(_prepared, body, engine, chat, service, request_id(request.scope))
    # from here to the response nothing waits, so that the generation always has somebody who closes it
    answer = Answer(engine.submit(generate), chat.splitter(prompt))
    envelope = Envelope(id=f"chatcmpl-{uuid.uuid4().hex}", created=int(time.time()), model=asked.model)
    if asked.stream:
        frames = stream(answer, envelope, request_id(request.scope), include_usage=asked.include_usage)
        return EventStream(frames, ping_s=settings.ping_s, on_end=answer.close)
    try:
        completion = await while_connected(collect(answer, envelope), request.receive)
    except ClientGone:
        return ASGIResponse(status_code=_NOBODY)
    finally:
        answer.close()
    return ASGIResponse(body=encode(completion), media_type="application/json")


def _prepared(
    body: bytes, engine: Engine, chat: Chat, service: Service, id: str
) -> tuple[ChatRequest, GenerateRequest, Prompt]:
    """The request in `body`, checked, and in the engine's terms."""
    asked = parse_chat_request(body)
    service.require(asked.model)
    tokenizer = engine.model.tokenizer
    prompt = chat.prompt(asked.messages, asked.options)
    # the template writes BOS where the model wants it
    ids = tokenizer.encode(prompt.text, add_bos=False)
    if not ids:
        raise RequestError("the chat template makes an empty prompt of these messages", param="messages")
    marked = any(
        token in tokenizer.special_ids for m in chat.markers or () for token in tokenizer.encode(m, add_bos=False)
    )
    generate = GenerateRequest(
        prompt_ids=tuple(ids),
        sampling=service.sampling(asked.sampling),
        max_tokens=asked.max_tokens,
        stop=asked.stop,
        skip_special=not marked,  # markers that are control tokens have to be seen to be split off
        id=id,
    )
    return asked, generate, prompt


async def collect(answer: Answer, envelope: Envelope) -> ChatCompletion:
    """The whole answer as one response."""
    reasoning: list[str] = []
    content: list[str] = []
    async for piece in answer.pieces():
        reasoning.append(piece.reasoning)
        content.append(piece.content)
    assert piece.usage is not None
    thought = "".join(reasoning)
    message = AssistantMessage(content="".join(content), reasoning_content=thought or UNSET)
    return envelope.completion(message, piece.finish_reason, piece.usage)


async def stream(answer: Answer, envelope: Envelope, id: str, *, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """The answer as frames. Once the first is out, an error can only be told in the last. `id` is for the log."""
    # null in every frame but the last, so that readers can tell that it will come
    pending = None if include_usage else UNSET

    def chunk(delta: ChunkDelta, reason: Any = None) -> bytes:
        return envelope.chunk(ChunkChoice(delta=delta, finish_reason=reason), usage=pending)

    yield chunk(ChunkDelta(role="assistant", content=""))
    try:
        async for piece in answer.pieces():
            if piece.reasoning:
                yield chunk(ChunkDelta(reasoning_content=piece.reasoning))
            if piece.content:
                yield chunk(ChunkDelta(content=piece.content))
            if piece.finish_reason is not None:
                yield chunk(ChunkDelta(), piece.finish_reason)
                if include_usage:
                    yield envelope.chunk(usage=piece.usage)
    except Exception as error:
        found = refusal(error)
        log_refusal(id, found, None if isinstance(error, RequestError) else error)
        yield frame(encode(found.body))
        return
    yield DONE
