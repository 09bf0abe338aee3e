"""A chat request: its wire form, and the checked form that the rest of the server works with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from hf2q.errors import RequestError
from hf2q.serve.api.asked import (
    Count,
    GenerationBody,
    choices_of,
    include_usage_of,
    sampling_of,
    stops_of,
)
from hf2q.serve.api.body import decode_as, decode_object
from hf2q.serve.api.chat_fields import CHAT
from hf2q.serve.api.chat_messages import ChatMessage, ImageRef, messages_of
from hf2q.serve.api.chat_tools import (
    FormatBody,
    GrammarBody,
    ToolBody,
    ToolChoiceBody,
    choice_of,
    format_of,
    tools_of,
)
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.chat import ChatQuery
from hf2q.serve.events import MOST_LOGPROBS
from hf2q.types import Record

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(Record, frozen=True, kw_only=True):
    """What a client asks for, checked.

    query       what the chat is asked
    images      those in the messages, in order
    n           number of choices
    max_tokens  None: as many as the context holds
    logprobs    so many of the likeliest tokens with each; None: no log probabilities
    sampling    only the fields that the request sets, by the names of `SamplingParams`
    salt        what keeps prefixes apart, None where the request says nothing
    """

    model: str
    query: ChatQuery
    images: tuple[ImageRef, ...]
    n: int
    stream: bool
    include_usage: bool
    max_tokens: int | None
    stop: tuple[str, ...]
    logprobs: int | None
    sampling: dict[str, Any]
    salt: str | None


class Body(GenerationBody, kw_only=True):
    """The request as it is sent; `hf2q.serve.api.chat_fields` says what each field does."""

    # fields that are refused are not here: `CHAT.check` has seen to them
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    response_format: FormatBody | None = None
    grammar: GrammarBody | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # hints
    metadata: dict[str, str] | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


def parse_chat_request(body: bytes, settings: ApiSettings) -> ChatRequest:
    """The request in `body`. Errors: RequestError naming the field by its path."""
    CHAT.check(decode_object(body))
    given = decode_as(body, Body)
    stream = bool(given.stream)
    messages, images = messages_of(given.messages, settings.max_messages)
    tools = tools_of(given.tools, settings.max_tools)
    return ChatRequest(
        model=given.model,
        query=ChatQuery(
            messages=messages,
            options=given.chat_template_kwargs or {},
            tools=tools,
            choice=choice_of(given.tool_choice, tools),
            parallel=given.parallel_tool_calls is not False,
            format=format_of(given.response_format, given.grammar),
            effort=given.reasoning_effort,
            thinking_budget=given.thinking_token_budget,
        ),
        images=images,
        n=choices_of(given.n, settings.max_choices),
        stream=stream,
        include_usage=include_usage_of(given.stream_options, stream),
        max_tokens=_max_tokens(given),
        stop=stops_of(given, settings.max_stops),
        logprobs=_logprobs(given),
        sampling=sampling_of(given),
        salt=given.cache_salt,
    )


def _logprobs(given: Body) -> int | None:
    if given.logprobs:
        return given.top_logprobs or 0
    if given.top_logprobs:
        raise RequestError(
            "top_logprobs are for requests with logprobs true", param="top_logprobs", code="invalid_value"
        )
    return None


def _max_tokens(given: Body) -> int | None:
    new, old = given.max_completion_tokens, given.max_tokens
    if new is not None and old is not None and new != old:
        raise RequestError(
            f"max_tokens is {old} and max_completion_tokens is {new}; give one of them", param="max_tokens"
        )
    return old if new is None else new
