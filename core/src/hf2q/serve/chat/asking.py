"""What `Model.chat` does around a generation: messages in plain form in, reasoning and answer apart out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from typing import Any, TypeAlias

from msgspec.structs import replace

from hf2q.errors import RequestError
from hf2q.serve.chat.deltas import AnswerParser
from hf2q.serve.chat.messages import Message, ToolCall
from hf2q.serve.chat.query import ChatQuery, Tool, ToolChoice
from hf2q.serve.events import ChatEvent, TokenEvent

MessageLike: TypeAlias = Message | Mapping[str, Any]
"""A `Message`, or a mapping with its fields: ``{"role": "user", "content": "Hello"}``."""

ToolLike: TypeAlias = Tool | Mapping[str, Any]
"""A `Tool`, or a mapping with its fields, or one in OpenAI's form: ``{"type": "function", "function": {...}}``."""

_FIELDS = frozenset({"role", "content", "reasoning", "images", "tool_calls", "tool_call_id", "name"})
_TOOL_FIELDS = frozenset({"name", "description", "parameters", "strict"})
_CALL_FIELDS = frozenset({"id", "name", "arguments"})
_WORDS = {str: "a text", Mapping: "a mapping", bool: "true or false"}


def messages_of(given: Several[MessageLike], images: int) -> list[Message]:
    """Messages in their full form. `images` that no message mentions belong to the last one.

    Errors: RequestError naming the message, and what it lacks or has too much.
    """
    if not isinstance(given, list | tuple) or not given:
        raise RequestError(f"messages is {given!r:.60}, expected a list of at least one message", param="messages")
    messages = [_message(message, index) for index, message in enumerate(given)]
    if images and not any(message.images for message in messages):
        messages[-1] = replace(messages[-1], images=images)
    return messages


def _message(given: MessageLike, index: int) -> Message:
    if isinstance(given, Message):
        return given
    if not isinstance(given, Mapping):
        raise RequestError(f"message {index} is {given!r:.60}, expected a mapping or a Message", param="messages")
    unknown = sorted(str(key) for key in given if key not in _FIELDS)
    if unknown:
        raise RequestError(
            f"message {index} has {', '.join(unknown)}; expected only {', '.join(sorted(_FIELDS))}", param="messages"
        )
    role, content, reasoning, images = (given.get(name) for name in ("role", "content", "reasoning", "images"))
    calls = given.get("tool_calls") or ()
    if not isinstance(role, str) or not role:
        raise RequestError(f"the role of message {index} is {role!r:.60}, expected a text", param="messages")
    if isinstance(content, list | tuple) and all(isinstance(text, str) for text in content):
        content = tuple(content)
    elif content is None and calls:
        content = ""
    elif not isinstance(content, str):
        raise RequestError(
            f"the content of message {index} is {content!r:.60}, expected a text or a list of texts", param="messages"
        )
    if not (reasoning is None or isinstance(reasoning, str)):
        raise RequestError(f"the reasoning of message {index} is {reasoning!r:.60}, expected a text", param="messages")
    if images is not None and (isinstance(images, bool) or not isinstance(images, int) or images < 0):
        raise RequestError(f"images of message {index} is {images!r:.60}, expected a number", param="messages")
    for word in ("tool_call_id", "name"):
        if not (given.get(word) is None or isinstance(given[word], str)):
            raise RequestError(
                f"the {word} of message {index} is {given[word]!r:.60}, expected a text", param="messages"
            )
    if not isinstance(calls, list | tuple):
        raise RequestError(f"tool_calls of message {index} is {calls!r:.60}, expected a list", param="messages")
    return Message(
        role=role,
        content=content,
        reasoning=reasoning,
        images=images or 0,
        tool_calls=tuple(_call(call, index) for call in calls),
        tool_call_id=given.get("tool_call_id"),
        name=given.get("name"),
    )


def _call(given: Any, index: int) -> ToolCall:
    """A `ToolCall`, a mapping with its fields, or one in OpenAI's form."""
    if isinstance(given, ToolCall):
        return given
    fields = given
    if isinstance(given, Mapping) and isinstance(given.get("function"), Mapping):
        fields = {**given["function"], **{key: given[key] for key in given if key not in ("function", "type")}}
    if (
        not isinstance(fields, Mapping)
        or set(fields) != _CALL_FIELDS
        or not all(isinstance(value, str) for value in fields.values())
    ):
        raise RequestError(
            f"a call of message {index} is {given!r:.80}, expected id, name and arguments, each a text",
            param="messages",
        )
    return ToolCall(id=fields["id"], name=fields["name"], arguments=fields["arguments"])


def query_of(
    messages: Several[MessageLike],
    *,
    images: int = 0,
    tools: Several[ToolLike] = (),
    tool_choice: str | ToolChoice = "auto",
    parallel: bool = True,
    options: Mapping[str, Any] | None = None,
) -> ChatQuery:
    """A question in its full form; the parameters are those of `Model.chat`.

    Errors: RequestError naming the message or tool, and what it lacks or has too much.
    """
    if not isinstance(tools, list | tuple):
        raise RequestError(f"tools is {tools!r:.60}, expected a list of tools", param="tools")
    return ChatQuery(
        messages=tuple(messages_of(messages, images)),
        tools=tuple(_tool(tool, index) for index, tool in enumerate(tools)),
        choice=_choice(tool_choice),
        parallel=parallel,
        options=options or {},
    )


def _tool(given: ToolLike, index: int) -> Tool:
    if isinstance(given, Tool):
        return given
    if not isinstance(given, Mapping):
        raise RequestError(f"tool {index} is {given!r:.60}, expected a mapping or a Tool", param="tools")
    if "function" in given:
        kind, inner = given.get("type", "function"), given["function"]
        if kind != "function" or not isinstance(inner, Mapping) or set(given) - {"type", "function"}:
            raise RequestError(f"tool {index} is {given!r:.60}, expected type 'function' and a function", param="tools")
        given = inner
    unknown = sorted(str(key) for key in given if key not in _TOOL_FIELDS)
    if unknown:
        raise RequestError(
            f"tool {index} has {', '.join(unknown)}; expected only {', '.join(sorted(_TOOL_FIELDS))}", param="tools"
        )
    name, description, parameters = given.get("name"), given.get("description") or "", given.get("parameters") or {}
    strict = given.get("strict") or False
    for word, value, kind in (
        ("name", name, str),
        ("description", description, str),
        ("parameters", parameters, Mapping),
        ("strict", strict, bool),
    ):
        if not isinstance(value, kind):
            raise RequestError(f"the {word} of tool {index} is {value!r:.60}, expected {_WORDS[kind]}", param="tools")
    return Tool(name=str(name), description=description, parameters=parameters, strict=strict)


def _choice(given: str | ToolChoice) -> ToolChoice:
    if isinstance(given, ToolChoice):
        return given
    if given == "none":
        return ToolChoice(mode="none")
    if given == "auto":
        return ToolChoice()
    if given == "required":
        return ToolChoice(mode="required")
    if not isinstance(given, str) or not given:
        raise RequestError(
            f"tool_choice is {given!r:.60}, expected none, auto, required or the name of a tool", param="tool_choice"
        )
    return ToolChoice(mode="required", name=given)


def read(events: Iterable[TokenEvent], parser: AnswerParser) -> Iterator[ChatEvent]:
    """The events of an answer, with the text of each divided into reasoning, answer and calls."""
    for event in events:
        reasoning, text, calls = parser.feed(event.text)
        reason = event.finish_reason
        if reason is not None:
            rest = parser.finish(cut=reason != "stop")
            reasoning, text, calls = reasoning + rest.reasoning, text + rest.content, calls + rest.calls
            reason = "tool_calls" if reason == "stop" and parser.called else reason
        yield ChatEvent(
            text=text,
            reasoning=reasoning,
            calls=calls,
            token=event.token,
            logprobs=event.logprobs,
            finish_reason=reason,
            usage=event.usage,
            timings=event.timings,
        )
