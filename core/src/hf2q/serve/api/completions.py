"""``POST /v1/completions``: texts, or tokens, are continued as they are, without a chat template."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from litestar import Request, post
from litestar.response.base import ASGIResponse

from hf2q.errors import ContextLengthError
from hf2q.serve.api.asked import sampling_of_choice
from hf2q.serve.api.auth import tenant
from hf2q.serve.api.body import read_body
from hf2q.serve.api.choices import cache_scope, choice_id, submit_all
from hf2q.serve.api.completions_frames import Envelope, collect, stream
from hf2q.serve.api.completions_request import CompletionRequest, parse_completion_request
from hf2q.serve.api.compute import Compute, Turn
from hf2q.serve.api.continuation import Continuation, Echo
from hf2q.serve.api.disconnect import NOBODY, ClientGone, while_connected
from hf2q.serve.api.echo import Prompt, echo_of, prompt_of
from hf2q.serve.api.lease import Lease
from hf2q.serve.api.request_id import request_id
from hf2q.serve.api.schema import encode
from hf2q.serve.api.service import Service
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.api.sse import EventStream
from hf2q.serve.events import GenerateRequest


@post("/v1/completions", status_code=200)
async def completions(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Continue texts."""
    service: Service = request.app.state.service
    settings: ApiSettings = request.app.state.settings
    compute: Compute = request.app.state.compute
    service.check()
    try:
        body = await read_body(request, settings.max_body)
        asked = await asyncio.to_thread(parse_completion_request, body, settings)
        with ExitStack() as ends:
            lease = await while_connected(service.leased(asked.model, settings.load_wait_s), request.receive)
            ends.callback(lease.close)
            prompts = await asyncio.to_thread(_prompts, asked, lease)
            echoes: list[Echo | None] = [None] * len(prompts)
            if asked.echo:
                echoes = await while_connected(_echoed(asked, lease, prompts, compute, settings), request.receive)
            # from here to the response nothing waits, so that the generations always have somebody who closes them
            answers = _answers(asked, lease, prompts, echoes, request, ends)
            envelope = Envelope(id=f"cmpl-{uuid.uuid4().hex}", created=int(time.time()), model=asked.model, n=asked.n)
            if asked.stream:
                frames = stream(answers, envelope, request_id(request.scope), include_usage=asked.include_usage)
                return EventStream(frames, ping_s=settings.ping_s, on_end=ends.pop_all().close)
            completion = await while_connected(collect(answers, envelope), request.receive)
    except ClientGone:
        return ASGIResponse(status_code=NOBODY)
    return ASGIResponse(body=encode(completion), media_type="application/json")


def _prompts(asked: CompletionRequest, lease: Lease) -> list[Prompt]:
    return [prompt_of(given, lease.model) for given in asked.prompts]


async def _echoed(
    asked: CompletionRequest, lease: Lease, prompts: Sequence[Prompt], compute: Compute, settings: ApiSettings
) -> list[Echo | None]:
    def work(turn: Turn) -> list[Echo | None]:
        return [echo_of(prompt, lease.model, asked.logprobs, settings.max_echo, turn) for prompt in prompts]

    if asked.logprobs is None:
        return work(Turn())
    return await compute.run(lease.model, work)


def _answers(
    asked: CompletionRequest,
    lease: Lease,
    prompts: Sequence[Prompt],
    echoes: Sequence[Echo | None],
    request: Request[Any, Any, Any],
    ends: ExitStack,
) -> list[Continuation]:
    """A continuation for each choice: those of the first prompt, those of the second ..."""
    scope = cache_scope(tenant=tenant(request.scope), model_id=lease.model_id, salt=asked.salt)
    count = len(prompts) * asked.n
    requests = [
        GenerateRequest(
            prompt_ids=prompt.ids,
            sampling=lease.sampling(sampling_of_choice(asked.sampling, choice)),
            max_tokens=max(1, asked.max_tokens),
            stop=asked.stop,
            logprobs=asked.logprobs,
            speculative=lease.speculative,
            scope=scope,
            id=choice_id(request_id(request.scope), place * asked.n + choice, count),
        )
        for place, prompt in enumerate(prompts)
        for choice in range(asked.n)
    ]
    try:
        handles = submit_all(lease.engine, requests) if asked.max_tokens else [None] * count
    except ContextLengthError as error:
        error.param = "prompt"
        raise
    answers = [
        Continuation(
            handle,
            lease.model,
            prompt_tokens=len(prompts[index // asked.n].ids),
            logprobs=asked.logprobs is not None,
            echo=echoes[index // asked.n],
        )
        for index, handle in enumerate(handles)
    ]
    for answer in answers:
        ends.callback(answer.close)
    return answers
