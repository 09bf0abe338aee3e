"""``/v1/responses``: a response is generated, kept, read again, continued, and forgotten."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import ExitStack
from typing import Any

import msgspec
from litestar import Request, delete, get, post
from litestar.response.base import ASGIResponse

from hf2q.errors import RequestError
from hf2q.serve.api.answer import Answer
from hf2q.serve.api.auth import tenant
from hf2q.serve.api.body import read_body
from hf2q.serve.api.chat_messages import ImageRef
from hf2q.serve.api.choices import ChatPrompt, cache_scope, prompt_of
from hf2q.serve.api.disconnect import NOBODY, ClientGone, while_connected
from hf2q.serve.api.errors import HttpRefusal
from hf2q.serve.api.images import Images
from hf2q.serve.api.lease import Lease
from hf2q.serve.api.request_id import request_id
from hf2q.serve.api.responses_frames import begun, collect, stream
from hf2q.serve.api.responses_items import Item, Turns
from hf2q.serve.api.responses_names import own_names
from hf2q.serve.api.responses_request import ResponsesRequest, parse_responses_request
from hf2q.serve.api.responses_schema import Deleted, ItemList, Response
from hf2q.serve.api.responses_store import Kept, ResponseStore
from hf2q.serve.api.schema import encode
from hf2q.serve.api.service import Service
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.api.sse import EventStream
from hf2q.serve.chat import ChatQuery, Message
from hf2q.serve.events import GenerateRequest


@post("/v1/responses", status_code=200)
async def responses(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Answer items."""
    service: Service = request.app.state.service
    settings: ApiSettings = request.app.state.settings
    service.check()
    try:
        body = await read_body(request, settings.max_body)
        asked = await asyncio.to_thread(parse_responses_request, body, settings)
        turns = _dialogue(asked, request)
        with ExitStack() as ends:
            lease = await while_connected(service.leased(asked.model, settings.load_wait_s), request.receive)
            ends.callback(lease.close)
            with own_names():
                prompt, images = await prompt_of(_query(asked, turns), turns.images, lease, request)
                generate = _request(asked, lease, prompt, images, request)
                parser = prompt.prepared.parser()
                answer = Answer(lease.engine.submit(generate), parser, lease.model)
            ends.callback(answer.close)
            response = begun(asked, generate.sampling, f"resp_{uuid.uuid4().hex}")
            keeper = _Keeper(asked, turns, request)
            keeper.keep(response)  # before anybody hears its id
            ends.callback(keeper.forget_unfinished)
            if asked.given.stream:
                frames = stream(answer, response, request_id(request.scope), opaque=asked.opaque, on_end=keeper.keep)
                return EventStream(frames, ping_s=settings.ping_s, on_end=ends.pop_all().close)
            done = await while_connected(collect(answer, response, opaque=asked.opaque), request.receive)
            keeper.keep(done)
    except ClientGone:
        return ASGIResponse(status_code=NOBODY)
    return ASGIResponse(body=encode(done), media_type="application/json")


@get("/v1/responses/{response_id:str}")
async def stored_response(request: Request[Any, Any, Any]) -> ASGIResponse:
    """A response that is kept."""
    _no_query(request)
    return ASGIResponse(body=encode(_kept(request).response), media_type="application/json")


@get("/v1/responses/{response_id:str}/input_items")
async def input_items(request: Request[Any, Any, Any]) -> ASGIResponse:
    """The items that a kept response answers, in their order; those of earlier responses are not among them."""
    _no_query(request)
    items = _kept(request).items
    ids = [str(item["id"]) for item in items]
    listed = ItemList(data=items, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None)
    return ASGIResponse(body=encode(listed), media_type="application/json")


@delete("/v1/responses/{response_id:str}", status_code=200)
async def delete_response(request: Request[Any, Any, Any]) -> Deleted:
    """Forget a response. Those that continued it keep what they took over."""
    kept = _kept(request)
    _store(request).drop(tenant(request.scope), kept.response.id)
    return Deleted(id=kept.response.id)


ROUTES = (responses, stored_response, input_items, delete_response)


def _dialogue(asked: ResponsesRequest, request: Request[Any, Any, Any]) -> Turns:
    """All that was said before the answer. Errors: HttpRefusal 404, 400 for a response that cannot be continued."""
    turns = Turns()
    previous = asked.given.previous_response_id
    if previous is not None:
        kept = _store(request).get(tenant(request.scope), previous, "previous_response_id")
        if kept.response.status not in ("completed", "incomplete"):
            raise RequestError(
                f"the response {previous!r} is {kept.response.status} and cannot be continued",
                param="previous_response_id",
                code="invalid_value",
            )
        turns.messages += kept.messages
        turns.images += kept.images
    for i, item in enumerate(asked.items):
        turns.take(item, f"input[{i}]")
    turns.end()
    return turns


def _query(asked: ResponsesRequest, turns: Turns) -> ChatQuery:
    given = asked.given
    first = () if given.instructions is None else (Message(role="system", content=given.instructions),)
    return ChatQuery(
        messages=(*first, *turns.messages),
        options=given.chat_template_kwargs or {},
        tools=asked.tools,
        choice=asked.choice,
        parallel=given.parallel_tool_calls is not False,
        format=asked.format,
        effort=None if given.reasoning is None else given.reasoning.effort,
        thinking_budget=given.thinking_token_budget,
    )


def _request(
    asked: ResponsesRequest, lease: Lease, prompt: ChatPrompt, images: Images, request: Request[Any, Any, Any]
) -> GenerateRequest:
    salt = asked.given.cache_salt
    return GenerateRequest(
        prompt_ids=prompt.ids,
        images=prompt.images,
        sampling=lease.sampling(asked.sampling),
        max_tokens=asked.given.max_output_tokens,
        stop=asked.stop,
        skip_special=prompt.prepared.skip_special,
        logprobs=asked.logprobs,
        speculative=lease.speculative and not prompt.images,
        constraint=prompt.prepared.constraint(),
        scope=cache_scope(tenant=tenant(request.scope), model_id=lease.model_id, salt=salt, images=images.digest),
        id=request_id(request.scope),
    )


class _Keeper:
    """Keeps one response as it comes about, where it is to be kept at all."""

    def __init__(self, asked: ResponsesRequest, turns: Turns, request: Request[Any, Any, Any]) -> None:
        self._store = _store(request) if asked.stored else None
        self._tenant = tenant(request.scope)
        self._items = tuple(_named(item) for item in asked.items)
        self._messages: tuple[Message, ...] = tuple(turns.messages)
        self._images: tuple[ImageRef, ...] = tuple(turns.images)
        self._last: Response | None = None

    def keep(self, response: Response) -> None:
        """What it is now."""
        self._last = response
        if self._store is None:
            return
        turns = Turns()
        for item in response.output:
            turns.take(msgspec.convert(msgspec.to_builtins(item), Item), "output")
        turns.end()
        self._store.put(
            self._tenant,
            Kept(
                response=response,
                items=self._items,
                messages=(*self._messages, *turns.messages),
                images=self._images,
            ),
        )

    def forget_unfinished(self) -> None:
        """The request is over: what has not come about never will."""
        if self._store is not None and self._last is not None and self._last.status == "in_progress":
            self._store.drop(self._tenant, self._last.id)


def _named(item: Item) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(item)
    return {"id": f"item_{uuid.uuid4().hex}", **{name: value for name, value in fields.items() if value is not None}}


def _kept(request: Request[Any, Any, Any]) -> Kept:
    return _store(request).get(tenant(request.scope), str(request.path_params["response_id"]))


def _store(request: Request[Any, Any, Any]) -> ResponseStore:
    found: ResponseStore = request.app.state.responses
    return found


def _no_query(request: Request[Any, Any, Any]) -> None:
    """Refuse what would change the answer: it comes whole, as it is kept."""
    for name, value in request.query_params.items():
        if name == "stream" and value in ("false", False):
            continue
        raise HttpRefusal(
            f"the query parameter {name[:80]!r} is not available here",
            status=400,
            param=name[:80],
            code="unsupported_parameter",
        )
