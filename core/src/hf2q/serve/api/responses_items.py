"""Items of ``/v1/responses``: as they are sent, and as messages of the chat room.

A turn of the assistant is several items here (reasoning, a message, calls), and one message there.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hf2q.errors import RequestError
from hf2q.serve.api.chat_messages import ImageRef
from hf2q.serve.chat import Message, ToolCall

OPAQUE = "hf2q-reasoning-1:"
"""What reasoning as an opaque text begins with."""
_ROLES = ("user", "assistant", "system", "developer")


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message's content, or of a call's output."""

    type: str
    text: str | None = None
    image_url: str | None = None
    detail: str | None = None
    file_id: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: Any = None


class Item(msgspec.Struct, forbid_unknown_fields=True):
    """One item; what its type does not have is refused by name."""

    type: str = "message"
    role: str | None = None
    content: str | list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None
    summary: list[Any] | None = None
    encrypted_content: str | None = None
    # of items that came from a response, and say nothing to the model
    id: str | None = None
    status: str | None = None
    phase: str | None = None


InputBody = Annotated[str, Meta(min_length=1)] | Annotated[list[Item], Meta(min_length=1)]

_OWN = {
    "message": {"role", "content", "phase"},
    "function_call": {"call_id", "name", "arguments"},
    "function_call_output": {"call_id", "output"},
    "reasoning": {"summary", "content", "encrypted_content"},
}
"""Type -> its fields, besides those that every item has."""


def items_of(given: InputBody) -> list[Item]:
    """The items that an input is."""
    return [Item(role="user", content=given)] if isinstance(given, str) else given


def opaque(reasoning: str) -> str:
    """Reasoning as `encrypted_content`."""
    return OPAQUE + base64.b64encode(reasoning.encode()).decode()


class Turns:
    """Messages made of items, one after the other. `messages` and `images` are there after `end`."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.images: list[ImageRef] = []
        self._reasoning: str | None = None
        self._texts: tuple[str, ...] | None = None
        self._calls: list[ToolCall] = []

    def take(self, item: Item, place: str) -> None:
        """The next item. Errors: RequestError naming what cannot be shown to a model."""
        own = _OWN.get(item.type)
        if own is None:
            raise _unsupported(f"{place}.type", f"is {item.type[:80]!r}; expected {', '.join(_OWN)}")
        for name in ("role", "content", "call_id", "name", "arguments", "output", "summary", "encrypted_content"):
            if name not in own and getattr(item, name) is not None:
                raise _unsupported(f"{place}.{name}", f"is set in an item of type {item.type!r}")
        if item.type == "message":
            self._message(item, place)
        elif item.type == "function_call":
            self._call(item, place)
        elif item.type == "reasoning":
            self._thought(item, place)
        else:
            self._result(item, place)

    def end(self) -> None:
        """Put down the assistant's turn that is open."""
        if self._reasoning is None and self._texts is None and not self._calls:
            return
        content: str | tuple[str, ...] = self._texts or ""
        self.messages.append(
            Message(
                role="assistant",
                content=content[0] if len(content) == 1 else content,
                reasoning=self._reasoning,
                tool_calls=tuple(self._calls),
            )
        )
        self._reasoning, self._texts, self._calls = None, None, []

    def _message(self, item: Item, place: str) -> None:
        if item.role not in _ROLES:
            raise _invalid(f"{place}.role", f"is {item.role!r:.80}, expected {', '.join(_ROLES)}")
        if item.content is None:
            raise _missing(f"{place}.content")
        if item.role != "assistant":
            self.end()
            self._say(item.role, item.content, f"{place}.content")
            return
        if self._texts is not None or self._calls:
            self.end()
        texts, places = self._content(item.content, f"{place}.content", images=False)
        assert not places
        self._texts = texts

    def _say(self, role: str, content: str | list[ContentPart], place: str, **more: Any) -> None:
        texts, places = self._content(content, place, images=role in ("user", "tool"))
        self.messages.append(
            Message(
                role="system" if role == "developer" else role,
                content=texts[0] if len(texts) == 1 and not places else texts,
                images=len(places),
                image_places=places,
                **more,
            )
        )

    def _call(self, item: Item, place: str) -> None:
        for name in ("call_id", "name"):
            if not getattr(item, name):
                raise _missing(f"{place}.{name}")
        try:
            fields = msgspec.json.decode(item.arguments or "{}")
        except (msgspec.MsgspecError, RecursionError) as error:
            raise _invalid(f"{place}.arguments", "is not the text of a JSON object") from error
        if not isinstance(fields, dict):
            raise _invalid(f"{place}.arguments", "is JSON, but not an object")
        self._calls.append(
            ToolCall(id=item.call_id or "", name=item.name or "", arguments=item.arguments or "{}"),
        )

    def _result(self, item: Item, place: str) -> None:
        self.end()
        if not item.call_id:
            raise _missing(f"{place}.call_id")
        if item.output is None:
            raise _missing(f"{place}.output")
        self._say("tool", item.output, f"{place}.output", tool_call_id=item.call_id)

    def _thought(self, item: Item, place: str) -> None:
        if self._texts is not None or self._calls or self._reasoning is not None:
            self.end()
        if isinstance(item.content, str):
            raise _invalid(f"{place}.content", "is a text, expected a list of parts")
        texts: list[str] = []
        for i, part in enumerate(item.content or ()):
            if part.type != "reasoning_text" or part.text is None:
                raise _invalid(f"{place}.content[{i}]", "is no part of type 'reasoning_text' with a text")
            texts.append(part.text)
        if not texts and item.encrypted_content:
            texts.append(_opened(item.encrypted_content, f"{place}.encrypted_content"))
        self._reasoning = "".join(texts) or None  # a summary alone is not what the model thought

    def _content(
        self, given: str | list[ContentPart], place: str, *, images: bool
    ) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The texts, and of each image the number of the text that it comes before."""
        if isinstance(given, str):
            return (given,), ()
        if not given:
            raise _invalid(place, "is an empty list")
        texts: list[str] = []
        places: list[int] = []
        for i, part in enumerate(given):
            where = f"{place}[{i}]"
            if part.type in ("input_text", "output_text", "text"):
                if part.text is None:
                    raise _missing(f"{where}.text")
                texts.append(part.text)
            elif part.type == "input_image" and images:
                self.images.append(_image(part, where))
                places.append(len(texts))
            else:
                known = "input_text, output_text" + (", input_image" if images else "")
                raise _unsupported(f"{where}.type", f"is {part.type[:80]!r}; expected {known}")
        return tuple(texts), tuple(places)


def _image(part: ContentPart, place: str) -> ImageRef:
    if part.file_id is not None:
        raise _unsupported(f"{place}.file_id", "is set, but files are not kept here; give an image_url")
    if part.image_url is None:
        raise _missing(f"{place}.image_url")
    if part.detail not in (None, "auto", "high", "original"):
        raise _unsupported(f"{place}.detail", f"is {part.detail[:40]!r}, but images are always seen in full")
    return ImageRef(url=part.image_url, param=f"{place}.image_url")


def _opened(text: str, place: str) -> str:
    if not text.startswith(OPAQUE):
        raise _invalid(place, "was not written by this server")
    try:
        return base64.b64decode(text.removeprefix(OPAQUE), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise _invalid(place, "is damaged") from error


def _unsupported(param: str, why: str) -> RequestError:
    return RequestError(f"{param} {why}", param=param, code="unsupported_value")


def _invalid(param: str, why: str) -> RequestError:
    return RequestError(f"{param} {why}", param=param, code="invalid_value")


def _missing(param: str) -> RequestError:
    return RequestError(f"{param} is missing", param=param, code="missing_required_parameter")
