"""`Message`: one turn of a dialogue, in the form that the chat room works with."""

from __future__ import annotations

from hf2q.types import Record


class ToolCall(Record, frozen=True, kw_only=True):
    """A call that the assistant made in an earlier turn. `arguments` is the text of a JSON object, as it was sent."""

    id: str
    name: str
    arguments: str


class Message(Record, frozen=True, kw_only=True):
    """One turn of a conversation. `content` is text or a tuple of pieces of text; `reasoning` what led to it.

    images        how many images it holds, before the text; the template writes a place for each
    image_places  where they stand otherwise: of each the number of the text that it comes before, ascending
    tool_calls    of the assistant's turn
    tool_call_id  of a turn of role ``tool``: the call that its content is the result of
    name          of a turn of role ``tool``: the function, where the request says
    """

    role: str
    content: str | tuple[str, ...]
    reasoning: str | None = None
    images: int = 0
    image_places: tuple[int, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
