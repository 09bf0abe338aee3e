"""The output of a response as it is generated: items, and the events that tell of them.

Streams send the events; unary responses leave them and take the items, which are the same.
"""

from __future__ import annotations

import uuid
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from hf2q.serve.api.answer import Piece
from hf2q.serve.api.logprobs import TokenLogprob
from hf2q.serve.api.responses_items import opaque
from hf2q.serve.api.responses_schema import (
    CallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
)
from hf2q.serve.chat.deltas import CallDelta

Event = tuple[str, dict[str, Any]]
"""Its type, and its fields besides its number."""


class Output:
    """Feed it the pieces of an answer; `items` are those that are done.

    opaque    give reasoning as an opaque text too
    """

    def __init__(self, *, opaque: bool = False) -> None:
        self.items: list[OutputItem] = []
        self._opaque = opaque
        self._open: OutputItem | None = None
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def take(self, piece: Piece) -> list[Event]:
        """The next piece of the answer."""
        events: list[Event] = []
        if piece.reasoning:
            if not isinstance(self._open, ReasoningItem):
                events += self._begin(ReasoningItem(id=_id("rs"), status="in_progress"))
            events += self._add("response.reasoning_text.delta", piece.reasoning)
        if piece.content:
            if not isinstance(self._open, MessageItem):
                events += self._begin(MessageItem(id=_id("msg"), status="in_progress"))
            self._logprobs += piece.logprobs or ()
            events += self._add("response.output_text.delta", piece.content, logprobs=piece.logprobs or ())
        for call in piece.calls:
            events += self._call(call)
        return events

    def end(self, status: Status) -> list[Event]:
        """The answer is over. One that says nothing has a message without text: clients look for it."""
        events = []
        if self._open is None and not self.items:
            events += self._begin(MessageItem(id=_id("msg"), status="in_progress"))
        return events + self._finish(status)

    def _call(self, call: CallDelta) -> list[Event]:
        events: list[Event] = []
        if call.id is not None:
            item = CallItem(id=_id("fc"), status="in_progress", call_id=call.id, name=call.name or "")
            events += self._begin(item)
        if call.arguments:
            events += self._add("response.function_call_arguments.delta", call.arguments)
        return events

    @property
    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        place = {"item_id": self._open.id, "output_index": len(self.items)}
        return place if isinstance(self._open, CallItem) else {**place, "content_index": 0}

    def _begin(self, item: OutputItem) -> list[Event]:
        events = self._finish("completed")
        self._open = item
        events.append(("response.output_item.added", {"output_index": len(self.items), "item": item}))
        if not isinstance(item, CallItem):
            part = self._part(item)
            events.append(("response.content_part.added", {**self._place, "part": part}))
        return events

    def _add(self, kind: str, text: str, **fields: Any) -> list[Event]:
        self._texts.append(text)
        return [(kind, {**self._place, "delta": text, **fields})]

    def _part(self, item: MessageItem | ReasoningItem) -> OutputText | ReasoningText:
        """The one part of an item's content, as far as it is known."""
        text = "".join(self._texts)
        if isinstance(item, ReasoningItem):
            return ReasoningText(text=text)
        return OutputText(text=text, logprobs=tuple(self._logprobs))

    def _finish(self, status: Status) -> list[Event]:
        item = self._open
        if item is None:
            return []
        place, text = self._place, "".join(self._texts)
        events: list[Event] = []
        done: OutputItem
        if isinstance(item, CallItem):
            events.append(("response.function_call_arguments.done", {**place, "name": item.name, "arguments": text}))
            done = replace(item, status=status, arguments=text)
        else:
            part = self._part(item)
            if isinstance(part, ReasoningText):
                events.append(("response.reasoning_text.done", {**place, "text": text}))
                secret = opaque(text) if self._opaque else UNSET
                done = replace(item, status=status, content=(part,), encrypted_content=secret)
            else:
                events.append(("response.output_text.done", {**place, "text": text, "logprobs": part.logprobs}))
                done = replace(item, status=status, content=(part,))
            events.append(("response.content_part.done", {**place, "part": part}))
        events.append(("response.output_item.done", {"output_index": len(self.items), "item": done}))
        self.items.append(done)
        self._open, self._texts, self._logprobs = None, [], []
        return events


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
