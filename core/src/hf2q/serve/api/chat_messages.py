"""Messages: as they are sent, and as the chat room takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hf2q.errors import RequestError
from hf2q.serve.chat import Message, ToolCall
from hf2q.types import Record


class ImageUrl(msgspec.Struct, forbid_unknown_fields=True):
    """Where an image is."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """One part of a message's content; those that cannot be shown are known so that they can be refused by name."""

    type: str
    text: str | None = None
    image_url: ImageUrl | None = None
    video_url: Any = None
    input_audio: Any = None
    file: Any = None
    refusal: Any = None


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    """The function of an earlier call; `arguments` is the text of a JSON object."""

    name: str
    arguments: str


class CallBody(msgspec.Struct, forbid_unknown_fields=True):
    """An earlier call. `index` is there when a client sends back what it put together from a stream."""

    id: str
    function: CalledFunction | None = None
    type: str = "function"
    index: int | None = None
    custom: Any = None


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One message as it is sent."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[Part], Meta(min_length=1)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[CallBody] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    audio: Any = None
    annotations: list[Any] | None = None


class ImageRef(Record, frozen=True, kw_only=True):
    """An image that a message holds: where it is, and its place in the request."""

    url: str
    param: str


def messages_of(given: list[ChatMessage], limit: int) -> tuple[tuple[Message, ...], tuple[ImageRef, ...]]:
    """Messages, and the images in them in order. Errors: RequestError naming what cannot be shown to a model."""
    if len(given) > limit:
        raise RequestError(
            f"there are {len(given)} messages, of which at most {limit} are taken",
            param="messages",
            code="invalid_value",
        )
    images: list[ImageRef] = []
    return tuple(_message(message, f"messages[{i}]", images) for i, message in enumerate(given)), tuple(images)


def _message(given: ChatMessage, place: str, images: list[ImageRef]) -> Message:
    if given.role == "function":
        raise _unsupported(f"{place}.role", "is 'function', which was replaced by 'tool'")
    for name in ("function_call", "audio", "annotations", "refusal"):
        if getattr(given, name):
            raise _unsupported(f"{place}.{name}", "is set, but cannot be shown to the model")
    tool = given.role == "tool"
    if given.name and not tool:
        raise _unsupported(f"{place}.name", "is set, but names of participants are not shown to the model")
    if given.tool_call_id is not None and not tool:
        raise _invalid(f"{place}.tool_call_id", "is for messages of role 'tool'")
    if tool and not given.tool_call_id:
        raise _missing(f"{place}.tool_call_id")
    if given.tool_calls and given.role != "assistant":
        raise _invalid(f"{place}.tool_calls", "are for messages of the assistant")
    reasoning = _reasoning(given, place)
    calls = tuple(_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(given.tool_calls or ()))
    content, places = _content(given, place, reasoning is not None or bool(calls), images)
    return Message(
        role="system" if given.role == "developer" else given.role,
        content=content,
        reasoning=reasoning,
        images=len(places),
        image_places=places,
        tool_calls=calls,
        tool_call_id=given.tool_call_id,
        name=given.name or None,
    )


def _call(given: CallBody, place: str) -> ToolCall:
    if given.type != "function" or given.custom is not None:
        param = f"{place}.{'custom' if given.type == 'function' else 'type'}"
        raise _unsupported(param, "is not of a function; custom tools are not available")
    if given.function is None:
        raise _missing(f"{place}.function")
    if not given.id:
        raise _invalid(f"{place}.id", "is empty")
    try:
        fields = msgspec.json.decode(given.function.arguments or "{}")
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _invalid(f"{place}.function.arguments", "is not the text of a JSON object") from error
    if not isinstance(fields, dict):
        raise _invalid(f"{place}.function.arguments", "is JSON, but not an object")
    return ToolCall(id=given.id, name=given.function.name, arguments=given.function.arguments or "{}")


def _reasoning(given: ChatMessage, place: str) -> str | None:
    new, old = given.reasoning_content, given.reasoning
    if new is None and old is None:
        return None
    if given.role != "assistant":
        name = "reasoning" if new is None else "reasoning_content"
        raise RequestError(f"{place}.{name} is for messages of the assistant", param=f"{place}.{name}")
    if new is not None and old is not None and new != old:
        raise RequestError(f"{place} has two different reasonings; give one of them", param=f"{place}.reasoning")
    return old if new is None else new


def _content(
    given: ChatMessage, place: str, may_be_empty: bool, images: list[ImageRef]
) -> tuple[str | tuple[str, ...], tuple[int, ...]]:
    """The texts, and of each image the number of the text that it comes before."""
    if given.content is None:
        if may_be_empty:
            return "", ()
        raise _missing(f"{place}.content")
    if isinstance(given.content, str):
        return given.content, ()
    texts: list[str] = []
    places: list[int] = []
    for i, part in enumerate(given.content):
        where = f"{place}.content[{i}]"
        found = READERS.get(part.type, _no_reader)(part, where)
        if isinstance(found, str):
            texts.append(found)
            continue
        if given.role not in ("user", "tool"):
            raise _unsupported(f"{where}.type", f"is 'image_url' in a message of role {given.role!r}")
        images.append(found)
        places.append(len(texts))
    return tuple(texts), tuple(places)


def _text(part: Part, place: str) -> str:
    _only(part, place, "text")
    if part.text is None:
        raise _missing(f"{place}.text")
    return part.text


def _image(part: Part, place: str) -> ImageRef:
    _only(part, place, "image_url")
    if part.image_url is None:
        raise _missing(f"{place}.image_url")
    if part.image_url.detail == "low":
        raise _unsupported(f"{place}.image_url.detail", "is 'low', but images are always seen in full")
    return ImageRef(url=part.image_url.url, param=f"{place}.image_url.url")


READERS: dict[str, Callable[[Part, str], str | ImageRef]] = {"text": _text, "image_url": _image}
"""By the type of a part."""


def _no_reader(part: Part, place: str) -> str:
    raise _unsupported(f"{place}.type", f"is {part.type!r:.80}; this server reads {' and '.join(READERS)}")


def _only(part: Part, place: str, own: str) -> None:
    names = ("text", "image_url", "video_url", "input_audio", "file", "refusal")
    others = [name for name in names if name != own and getattr(part, name) is not None]
    if others:
        raise _unsupported(f"{place}.{others[0]}", f"is set in a part of type {own!r}")


def _unsupported(param: str, why: str) -> RequestError:
    return RequestError(f"{param} {why}", param=param, code="unsupported_value")


def _invalid(param: str, why: str) -> RequestError:
    return RequestError(f"{param} {why}", param=param, code="invalid_value")


def _missing(param: str) -> RequestError:
    return RequestError(f"{param} is missing", param=param, code="missing_required_parameter")
