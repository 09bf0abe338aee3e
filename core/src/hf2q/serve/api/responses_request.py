"""A request to ``/v1/responses``: its wire form, and the checked form that the rest of the server works with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hf2q.errors import RequestError
from hf2q.serve.api.asked import Count, SamplingBody, sampling_of, stops_of
from hf2q.serve.api.body import convert_at, decode_as, decode_object
from hf2q.serve.api.chat_request import Effort
from hf2q.serve.api.chat_tools import (
    ChoiceBody,
    FormatBody,
    FunctionBody,
    NameBody,
    SchemaBody,
    ToolBody,
    choice_of,
    format_of,
    tools_of,
)
from hf2q.serve.api.responses_fields import RESPONSES
from hf2q.serve.api.responses_items import InputBody, Item, items_of
from hf2q.serve.api.responses_names import own_names
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.chat import ResponseFormat, Tool, ToolChoice
from hf2q.serve.events import MOST_LOGPROBS
from hf2q.types import Record

LOGPROBS = "message.output_text.logprobs"
OPAQUE_REASONING = "reasoning.encrypted_content"


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True):
    """One of `tools`; the fields of a function stand beside its type here."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedChoice(msgspec.Struct, forbid_unknown_fields=True):
    """A `tool_choice` that is an object."""

    type: str
    name: str | None = None


class TextFormat(msgspec.Struct, forbid_unknown_fields=True):
    """`text.format`; the fields of a schema stand beside its type here."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class TextBody(msgspec.Struct, forbid_unknown_fields=True):
    """`text`."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningBody(msgspec.Struct, forbid_unknown_fields=True):
    """`reasoning`."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class Body(SamplingBody, kw_only=True):
    """The request as it is sent; `hf2q.serve.api.responses_fields` says what each field does."""

    input: InputBody
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    max_output_tokens: Count | None = None
    text: TextBody | None = None
    tools: list[dict[str, msgspec.Raw]] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningBody | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    thinking_token_budget: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    # hints
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None


class ResponsesRequest(Record, frozen=True, kw_only=True):
    """What a client asks for, checked.

    items      of the input;  given  the body, for what the response says again
    logprobs   so many of the likeliest tokens with each; None: no log probabilities
    opaque     whether reasoning shall come as an opaque text too
    sampling   only the fields that the request sets, by the names of `SamplingParams`
    """

    model: str
    items: tuple[Item, ...]
    given: Body
    tools: tuple[Tool, ...]
    choice: ToolChoice
    format: ResponseFormat | None
    stop: tuple[str, ...]
    logprobs: int | None
    opaque: bool
    sampling: dict[str, Any]

    @property
    def stored(self) -> bool:
        """Whether the response shall be kept."""
        return self.given.store is not False


def parse_responses_request(body: bytes, settings: ApiSettings) -> ResponsesRequest:
    """The request in `body`. Errors: RequestError naming the field by its path."""
    RESPONSES.check(decode_object(body))
    given = decode_as(body, Body)
    items = items_of(given.input)
    if len(items) > settings.max_messages:
        raise RequestError(
            f"input has {len(items)} items, of which at most {settings.max_messages} are taken",
            param="input",
            code="invalid_value",
        )
    tools = _tools(given, settings.max_tools)
    include = _include(given.include)
    return ResponsesRequest(
        model=given.model,
        items=tuple(items),
        given=given,
        tools=tools,
        choice=_choice(given, tools),
        format=_format(given.text),
        stop=stops_of(given, settings.max_stops),
        logprobs=(given.top_logprobs or 0) if LOGPROBS in include or given.top_logprobs else None,
        opaque=OPAQUE_REASONING in include,
        sampling=sampling_of(given),
    )


def _include(given: list[str] | None) -> frozenset[str]:
    for i, name in enumerate(given or ()):
        if name not in (LOGPROBS, OPAQUE_REASONING):
            raise RequestError(
                f"include[{i}] is {name[:80]!r}; expected {LOGPROBS} or {OPAQUE_REASONING}",
                param=f"include[{i}]",
                code="unsupported_value",
            )
    return frozenset(given or ())


def _tools(given: Body, limit: int) -> tuple[Tool, ...]:
    found: list[ToolBody] = []
    for i, raw in enumerate(given.tools or ()):
        # the type first: tools of other types have other fields, and it is the type that is not available
        try:
            kind = msgspec.json.decode(raw.get("type", b'""'))
        except (msgspec.MsgspecError, RecursionError):
            kind = None
        if kind != "function":
            param = f"tools[{i}].type"
            raise RequestError(
                f"{param} is {kind!r:.80}: only tools of type 'function' are available",
                param=param,
                code="unsupported_value",
            )
        tool = convert_at(raw, FunctionTool, f"tools[{i}]")
        if tool.name is None:
            raise RequestError(
                f"tools[{i}].name is missing", param=f"tools[{i}].name", code="missing_required_parameter"
            )
        function = FunctionBody(tool.name, tool.description, tool.parameters, tool.strict)
        found.append(ToolBody("function", function))
    with own_names():
        return tools_of(found, limit)


def _choice(given: Body, tools: tuple[Tool, ...]) -> ToolChoice:
    choice = given.tool_choice
    with own_names():
        if not isinstance(choice, NamedChoice):
            return choice_of(choice, tools)
        return choice_of(ChoiceBody(choice.type, None if choice.name is None else NameBody(choice.name)), tools)


def _format(text: TextBody | None) -> ResponseFormat | None:
    form = None if text is None else text.format
    if form is None:
        return None
    schema = None
    if form.type == "json_schema":
        for name in ("name", "schema"):
            if getattr(form, name) is None:
                param = f"text.format.{name}"
                raise RequestError(f"{param} is missing", param=param, code="missing_required_parameter")
        schema = SchemaBody(form.name or "", form.schema, form.strict, form.description)
    for name in ("name", "schema", "strict", "description"):
        if schema is None and getattr(form, name) is not None:
            param = f"text.format.{name}"
            raise RequestError(f"{param} is set, but the type is {form.type!r}", param=param, code="invalid_value")
    with own_names():
        return format_of(FormatBody(form.type, schema), None)
