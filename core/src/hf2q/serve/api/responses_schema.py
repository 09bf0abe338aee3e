"""What ``/v1/responses`` sends: the response object with its items, and the events of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from hf2q.serve.api.logprobs import TokenLogprob
from hf2q.types import Record

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(Record, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningText(Record, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    """The text of reasoning."""

    text: str


class MessageItem(Record, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """What the assistant says."""

    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: tuple[OutputText, ...] = ()


class ReasoningItem(Record, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """What led to it. There are no summaries: reasoning comes whole."""

    id: str
    status: Status
    summary: tuple[()] = ()
    content: tuple[ReasoningText, ...] = ()
    encrypted_content: str | UnsetType = UNSET


class CallItem(Record, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str = ""


OutputItem = MessageItem | ReasoningItem | CallItem


class InputTokensDetails(Record, frozen=True, kw_only=True):
    """Where input tokens came from."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(Record, frozen=True, kw_only=True):
    """What output tokens were spent on."""

    reasoning_tokens: int = 0


class ResponseUsage(Record, frozen=True, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(Record, frozen=True, kw_only=True):
    """Why a response ended early."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseFailure(Record, frozen=True, kw_only=True):
    """What went wrong."""

    code: str
    message: str


class Response(Record, frozen=True, kw_only=True):
    """A response. The fields from `instructions` to `user` say again what was asked for."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    model: str
    status: Status
    background: bool = False
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    output: tuple[OutputItem, ...] = ()
    usage: ResponseUsage | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: Mapping[str, str] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: Mapping[str, Any] = {}
    store: bool = True
    temperature: float
    text: Mapping[str, Any] = {}
    tool_choice: Any = "auto"
    tools: tuple[Any, ...] = ()
    top_logprobs: int = 0
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    user: str | None = None


class Deleted(Record, frozen=True, kw_only=True):
    """The answer to the deletion of a response."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemList(Record, frozen=True, kw_only=True):
    """The items that a response answers."""

    object: Literal["list"] = "list"
    data: tuple[Any, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


def event(kind: str, number: int, **fields: Any) -> bytes:
    """A frame of a stream: an event of type `kind`, the `number`-th of its stream."""
    body = msgspec.json.encode({"type": kind, "sequence_number": number, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"
