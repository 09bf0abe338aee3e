"""``POST /tokenize``, ``/detokenize`` and ``/apply-template``: the steps before a prompt, each by itself.

Their shapes are those of llama.cpp's server (tools/server/README.md, "POST /tokenize" and following), so that its
clients find them. `model` is added, for servers of several models; `messages` for `/tokenize`, as vLLM takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any, TypeVar

import msgspec
from litestar import Request, post
from litestar.response.base import ASGIResponse
from msgspec import Meta

from hf2q.errors import RequestError
from hf2q.serve.api.body import decode_as, decode_object, read_body
from hf2q.serve.api.chat_messages import ChatMessage, ImageRef, messages_of
from hf2q.serve.api.chat_request import Effort
from hf2q.serve.api.chat_tools import ToolBody, ToolChoiceBody, choice_of, tools_of
from hf2q.serve.api.disconnect import NOBODY, ClientGone, while_connected
from hf2q.serve.api.fields import Fields
from hf2q.serve.api.lease import Lease
from hf2q.serve.api.schema import encode
from hf2q.serve.api.service import Service
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.chat import ChatQuery
from hf2q.types import Record

_TEMPLATE = {
    "messages": "a conversation, as for `/v1/chat/completions`; images are refused",
    "tools": "functions, as for `/v1/chat/completions`",
    "tool_choice": "as for `/v1/chat/completions`",
    "reasoning_effort": "as for `/v1/chat/completions`",
    "chat_template_kwargs": "variables of the chat template",
}
_MODEL = {"model": "the model, by an id of `/v1/models`; may be left out where there is but one"}

TOKENIZE = Fields(
    honoured={
        **_MODEL,
        "content": "the text; either this or `messages`",
        **_TEMPLATE,
        "add_special": "true adds the tokens that the model wants around a text; not with `messages`, where the "
        "template writes them",
        "parse_special": "false takes marks that the text spells out as ordinary text; not with `messages`",
        "with_pieces": "true gives each token as an object with `id` and `piece`: its text, or its bytes where they "
        "are none",
    }
)
DETOKENIZE = Fields(honoured={**_MODEL, "tokens": "token ids"})
APPLY_TEMPLATE = Fields(honoured={**_MODEL, **_TEMPLATE})
"""What becomes of each field."""


class TemplateBody(msgspec.Struct, kw_only=True):
    """A conversation to be rendered, as it is sent."""

    model: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: ToolChoiceBody | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeBody(TemplateBody, kw_only=True):
    """A request to tokenize."""

    content: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """A request to detokenize."""

    model: str | None = None
    tokens: list[Annotated[int, Meta(ge=0, le=2**31 - 1)]]


class TokenPiece(Record, frozen=True, kw_only=True):
    """A token, and what it adds to a text: text, or bytes where they alone are none."""

    id: int
    piece: str | tuple[int, ...]


class Tokens(Record, frozen=True, kw_only=True):
    """The response of ``/tokenize``."""

    tokens: tuple[int | TokenPiece, ...]


class Content(Record, frozen=True, kw_only=True):
    """The response of ``/detokenize``."""

    content: str


class Rendered(Record, frozen=True, kw_only=True):
    """The response of ``/apply-template``."""

    prompt: str


@post("/tokenize", status_code=200)
async def tokenize(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Turn a text, or a conversation, into token ids."""
    return await _answered(request, TokenizeBody, TOKENIZE, _tokenize)


@post("/detokenize", status_code=200)
async def detokenize(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Turn token ids into text."""
    return await _answered(request, DetokenizeBody, DETOKENIZE, _detokenize)


@post("/apply-template", status_code=200)
async def apply_template(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Turn a conversation into the prompt that the model would get."""
    return await _answered(request, TemplateBody, APPLY_TEMPLATE, _apply_template)


def _tokenize(given: TokenizeBody, lease: Lease, settings: ApiSettings) -> Tokens:
    if (given.content is None) == (given.messages is None):
        raise RequestError("give either content or messages", param="content", code="missing_required_parameter")
    tokenizer = lease.model.tokenizer
    if given.content is None:
        for name in ("add_special", "parse_special"):
            if getattr(given, name) is not None:
                raise RequestError(f"{name} is not for messages", param=name, code="invalid_value")
        ids = tokenizer.encode(_rendered(given, lease, settings), add_bos=False)
    else:
        if given.tools or given.tool_choice or given.reasoning_effort or given.chat_template_kwargs:
            raise RequestError("content goes without a template's fields", param="content", code="invalid_value")
        special = given.parse_special is not False
        ids = tokenizer.encode(given.content, special=special, add_bos=None if given.add_special else False)
    if not given.with_pieces:
        return Tokens(tokens=tuple(ids))
    return Tokens(tokens=tuple(TokenPiece(id=token, piece=_piece(tokenizer.token_bytes(token))) for token in ids))


def _piece(data: bytes) -> str | tuple[int, ...]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return tuple(data)


def _detokenize(given: DetokenizeBody, lease: Lease, settings: ApiSettings) -> Content:
    del settings
    try:
        return Content(content=lease.model.tokenizer.decode(given.tokens))
    except RequestError as error:
        error.param, error.code = "tokens", "invalid_value"
        raise


def _apply_template(given: TemplateBody, lease: Lease, settings: ApiSettings) -> Rendered:
    return Rendered(prompt=_rendered(given, lease, settings))


def _rendered(given: TemplateBody, lease: Lease, settings: ApiSettings) -> str:
    if given.messages is None:
        raise RequestError("messages is missing", param="messages", code="missing_required_parameter")
    messages, images = messages_of(given.messages, settings.max_messages)
    _no_images(images)
    tools = tools_of(given.tools, settings.max_tools)
    query = ChatQuery(
        messages=messages,
        options=given.chat_template_kwargs or {},
        tools=tools,
        choice=choice_of(given.tool_choice, tools),
        effort=given.reasoning_effort,
    )
    return lease.chat.prepare(query).text


def _no_images(images: tuple[ImageRef, ...]) -> None:
    if images:
        raise RequestError(
            f"{images[0].param}: a prompt with images is more than its text",
            param=images[0].param,
            code="unsupported_value",
        )


Given = TypeVar("Given", TokenizeBody, DetokenizeBody, TemplateBody)


async def _answered(
    request: Request[Any, Any, Any],
    wanted: type[Given],
    fields: Fields,
    work: Callable[[Given, Lease, ApiSettings], Record],
) -> ASGIResponse:
    service: Service = request.app.state.service
    settings: ApiSettings = request.app.state.settings
    service.check()
    try:
        body = await read_body(request, settings.max_body)
        given = await asyncio.to_thread(_parsed, body, wanted, fields)
        with ExitStack() as ends:
            name = _only(service) if given.model is None else given.model
            lease = await while_connected(service.leased(name, settings.load_wait_s), request.receive)
            ends.callback(lease.close)
            found = await asyncio.to_thread(lambda: encode(work(given, lease, settings)))
    except ClientGone:
        return ASGIResponse(status_code=NOBODY)
    return ASGIResponse(body=found, media_type="application/json")


def _parsed(body: bytes, wanted: type[Given], fields: Fields) -> Given:
    fields.check(decode_object(body))
    return decode_as(body, wanted)


def _only(service: Service) -> str:
    members = service.pool.members
    if len(members) != 1:
        raise RequestError("model is missing", param="model", code="missing_required_parameter")
    return members[0].file.id
