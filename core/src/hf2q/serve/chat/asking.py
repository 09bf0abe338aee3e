"""What `Model.chat` does around a generation: messages in plain form in, reasoning and answer apart out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from typing import Any, TypeAlias

from hf2q.errors import RequestError
from hf2q.serve.chat.conversation import Message
from hf2q.serve.chat.reasoning import ReasoningSplitter
from hf2q.serve.events import ChatEvent, TokenEvent

MessageLike: TypeAlias = Message | Mapping[str, Any]
"""A `Message`, or a mapping with its fields: ``{"role": "user", "content": "Hello"}``."""

_FIELDS = frozenset({"role", "content", "reasoning", "images"})


def messages_of(given: Several[MessageLike], images: int) -> list[Message]:
    """Messages in their full form. `images` that no message mentions belong to the last one.

    Errors: RequestError naming the message, and what it lacks or has too much.
    """
    if not isinstance(given, list | tuple) or not given:
        raise RequestError(f"messages is {given!r:.60}, expected a list of at least one message", param="messages")
    messages = [_message(message, index) for index, message in enumerate(given)]
    if images and not any(message.images for message in messages):
        last = messages[-1]
        messages[-1] = Message(role=last.role, content=last.content, reasoning=last.reasoning, images=images)
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
    if not isinstance(role, str) or not role:
        raise RequestError(f"the role of message {index} is {role!r:.60}, expected a text", param="messages")
    if isinstance(content, list | tuple) and all(isinstance(text, str) for text in content):
        content = tuple(content)
    elif not isinstance(content, str):
        raise RequestError(
            f"the content of message {index} is {content!r:.60}, expected a text or a list of texts", param="messages"
        )
    if not (reasoning is None or isinstance(reasoning, str)):
        raise RequestError(f"the reasoning of message {index} is {reasoning!r:.60}, expected a text", param="messages")
    if images is not None and (isinstance(images, bool) or not isinstance(images, int) or images < 0):
        raise RequestError(f"images of message {index} is {images!r:.60}, expected a number", param="messages")
    return Message(role=role, content=content, reasoning=reasoning, images=images or 0)


def split(events: Iterable[TokenEvent], splitter: ReasoningSplitter) -> Iterator[ChatEvent]:
    """The events of an answer, with the text of each divided into reasoning and answer."""
    for event in events:
        reasoning, text = splitter.feed(event.text)
        if event.finish_reason is not None:
            rest = splitter.finish()
            reasoning, text = reasoning + rest.reasoning, text + rest.content
        yield ChatEvent(
            text=text,
            reasoning=reasoning,
            token=event.token,
            logprobs=event.logprobs,
            finish_reason=event.finish_reason,
            usage=event.usage,
            timings=event.timings,
        )
