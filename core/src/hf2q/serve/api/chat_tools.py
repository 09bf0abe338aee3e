"""Tools, the choice among them, and the form of an answer: as they are sent, and as the chat room takes them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hf2q.errors import RequestError
from hf2q.serve.chat import ResponseFormat, Tool, ToolChoice

NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
MAX_GRAMMAR = 256 << 10
"""Characters of a grammar."""


class FunctionBody(msgspec.Struct, forbid_unknown_fields=True):
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(msgspec.Struct, forbid_unknown_fields=True):
    """One of `tools`; `custom` is known so that it can be refused by name."""

    type: str
    function: FunctionBody | None = None
    custom: Any = None


class NameBody(msgspec.Struct, forbid_unknown_fields=True):
    """A function by its name."""

    name: str


class ChoiceBody(msgspec.Struct, forbid_unknown_fields=True):
    """A `tool_choice` that is an object; what is no function is known so that it can be refused by name."""

    type: str
    function: NameBody | None = None
    custom: Any = None
    allowed_tools: Any = None


class SchemaBody(msgspec.Struct, forbid_unknown_fields=True):
    """The schema of a `response_format`."""

    name: str
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class FormatBody(msgspec.Struct, forbid_unknown_fields=True):
    """A `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaBody | None = None


ToolChoiceBody = Literal["none", "auto", "required"] | ChoiceBody
GrammarBody = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR)]


def tools_of(given: list[ToolBody] | None, limit: int) -> tuple[Tool, ...]:
    """Functions. Errors: RequestError naming the first that is none, or whose name is no name or not its own."""
    if given and len(given) > limit:
        raise RequestError(
            f"there are {len(given)} tools, of which at most {limit} are taken", param="tools", code="invalid_value"
        )
    found: dict[str, Tool] = {}
    for i, tool in enumerate(given or ()):
        made = _tool(tool, f"tools[{i}]")
        if made.name in found:
            raise _invalid(f"tools[{i}].function.name", f"is {made.name!r}, as of an earlier tool")
        found[made.name] = made
    return tuple(found.values())


def _tool(given: ToolBody, place: str) -> Tool:
    if given.type != "function" or given.custom is not None:
        param = f"{place}.{'custom' if given.type == 'function' else 'type'}"
        raise RequestError(
            f"{param}: only tools of type 'function' are available", param=param, code="unsupported_value"
        )
    function = given.function
    if function is None:
        param = f"{place}.function"
        raise RequestError(f"{param} is missing", param=param, code="missing_required_parameter")
    if not NAME.fullmatch(function.name):
        raise _invalid(
            f"{place}.function.name",
            f"is {function.name[:80]!r}, expected 1 to 128 letters, digits, '_', '-' and '.'",
        )
    kind = (function.parameters or {}).get("type", "object")
    if kind != "object":
        raise _invalid(
            f"{place}.function.parameters.type", f"is {kind!r:.80}, but arguments are an object: expected 'object'"
        )
    return Tool(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters or {},
        strict=bool(function.strict),
    )


def choice_of(given: ToolChoiceBody | None, tools: tuple[Tool, ...]) -> ToolChoice:
    """Whether the model has to call. Errors: RequestError for a choice without tools, or among other tools."""
    if given is None or given == "auto":
        return ToolChoice(mode="auto" if tools else "none")
    if given == "none":
        return ToolChoice(mode="none")
    if isinstance(given, ChoiceBody) and given.type != "function":
        raise RequestError(
            f"tool_choice.type is {given.type[:80]!r}; only 'function' is available",
            param="tool_choice.type",
            code="unsupported_value",
        )
    if not tools:
        raise _invalid("tool_choice", "asks for a call, but there are no tools")
    if not isinstance(given, ChoiceBody):
        return ToolChoice(mode="required")
    for name in ("custom", "allowed_tools"):
        if getattr(given, name) is not None:
            raise RequestError(
                f"tool_choice.{name} is not available", param=f"tool_choice.{name}", code="unsupported_value"
            )
    if given.function is None:
        raise RequestError(
            "tool_choice.function is missing", param="tool_choice.function", code="missing_required_parameter"
        )
    if given.function.name not in {tool.name for tool in tools}:
        raise _invalid("tool_choice.function.name", f"is {given.function.name[:80]!r}, which is none of the tools")
    return ToolChoice(mode="required", name=given.function.name)


def format_of(given: FormatBody | None, grammar: str | None) -> ResponseFormat | None:
    """The form of the answer, None for free text. Errors: RequestError for two forms, or one without its schema."""
    if grammar is not None:
        if given is not None and given.type != "text":
            raise _invalid("grammar", "is given together with response_format; give one of them")
        return ResponseFormat(kind="grammar", grammar=grammar)
    if given is None:
        return None
    schema = given.json_schema
    if given.type != "json_schema":
        if schema is not None:
            raise _invalid("response_format.json_schema", f"is given with type {given.type!r}")
        return None if given.type == "text" else ResponseFormat(kind="json_object")
    if schema is None:
        param = "response_format.json_schema"
        raise RequestError(f"{param} is missing", param=param, code="missing_required_parameter")
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", schema.name):
        raise _invalid(
            "response_format.json_schema.name", f"is {schema.name[:80]!r}, expected 1 to 64 letters, digits, '_', '-'"
        )
    # without a schema any JSON will do
    return ResponseFormat(kind="json_schema", schema=True if schema.schema is None else schema.schema, name=schema.name)


def _invalid(param: str, why: str) -> RequestError:
    return RequestError(f"{param} {why}", param=param, code="invalid_value")
