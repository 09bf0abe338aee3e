"""``POST /v1/chat/completions``: a request becomes generations, and those a response, whole or as a stream.

Stop strings act on the text as the model writes it, reasoning and its markers included. Everything that can be refused
is refused before the first byte of a stream.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import ExitStack
from typing import Any

from litestar import Request, post
from litestar.response.base import ASGIResponse

from hf2q.errors import RequestError
from hf2q.serve.api.answer import Answer
from hf2q.serve.api.asked import sampling_of_choice
from hf2q.serve.api.auth import tenant
from hf2q.serve.api.body import read_body
from hf2q.serve.api.chat_frames import Envelope, collect, stream
from hf2q.serve.api.chat_request import ChatRequest, parse_chat_request
from hf2q.serve.api.choices import ChatPrompt, cache_scope, choice_id, prompt_of, submit_all
from hf2q.serve.api.disconnect import NOBODY, ClientGone, while_connected
from hf2q.serve.api.images import Images
from hf2q.serve.api.lease import Lease
from hf2q.serve.api.request_id import request_id
from hf2q.serve.api.schema import encode
from hf2q.serve.api.service import Service
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.api.sse import EventStream
from hf2q.serve.events import GenerateRequest


@post("/v1/chat/completions", status_code=200)
async def chat_completions(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Answer a conversation."""
    service: Service = request.app.state.service
    settings: ApiSettings = request.app.state.settings
    service.check()
    try:
        body = await read_body(request, settings.max_body)
        # a long conversation takes a while: not in the event loop's thread
        asked = await asyncio.to_thread(parse_chat_request, body, settings)
        with ExitStack() as ends:
            lease = await while_connected(service.leased(asked.model, settings.load_wait_s), request.receive)
            ends.callback(lease.close)
            prompt, images = await prompt_of(asked.query, asked.images, lease, request)
            requests = _requests(asked, lease, prompt, images, request)
            # from here to the response nothing waits, so that the generations always have somebody who closes them
            answers = _answers(lease, prompt, requests, ends)
            envelope = Envelope(id=f"chatcmpl-{uuid.uuid4().hex}", created=int(time.time()), model=asked.model)
            if asked.stream:
                frames = stream(answers, envelope, request_id(request.scope), include_usage=asked.include_usage)
                return EventStream(frames, ping_s=settings.ping_s, on_end=ends.pop_all().close)
            completion = await while_connected(collect(answers, envelope), request.receive)
    except ClientGone:
        return ASGIResponse(status_code=NOBODY)
    return ASGIResponse(body=encode(completion), media_type="application/json")


def _requests(
    asked: ChatRequest, lease: Lease, prompt: ChatPrompt, images: Images, request: Request[Any, Any, Any]
) -> list[GenerateRequest]:
    scope = cache_scope(tenant=tenant(request.scope), model_id=lease.model_id, salt=asked.salt, images=images.digest)
    return [
        GenerateRequest(
            prompt_ids=prompt.ids,
            images=prompt.images,
            sampling=lease.sampling(sampling_of_choice(asked.sampling, index)),
            max_tokens=asked.max_tokens,
            stop=asked.stop,
            skip_special=prompt.prepared.skip_special,
            logprobs=asked.logprobs,
            speculative=lease.speculative and not prompt.images,
            constraint=prompt.prepared.constraint(),
            scope=scope,
            id=choice_id(request_id(request.scope), index, asked.n),
        )
        for index in range(asked.n)
    ]


def _answers(lease: Lease, prompt: ChatPrompt, requests: list[GenerateRequest], ends: ExitStack) -> list[Answer]:
    parsers = [prompt.prepared.parser() for _ in requests]
    try:
        handles = submit_all(lease.engine, requests)
    except RequestError as error:
        if error.param == "prompt":  # the engine's word for it
            error.param = "messages"
        raise
    answers = [Answer(handle, parser, lease.model) for handle, parser in zip(handles, parsers, strict=True)]
    for answer in answers:
        ends.callback(answer.close)
    return answers
