"""What the server sends: OpenAI's response objects, and hf2q's own for health."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from hf2q.serve.api.logprobs import ContentLogprobs
from hf2q.serve.api.usage import Timing, Usage
from hf2q.types import Record

FinishReason = Literal["stop", "length", "tool_calls"]


class CalledFunction(Record, frozen=True, kw_only=True):
    """The function of a call; `arguments` is the text of a JSON object."""

    name: str
    arguments: str


class ToolCallItem(Record, frozen=True, kw_only=True):
    """A call of a unary response."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(Record, frozen=True, kw_only=True):
    """The answer of a unary response. `content` is null when there are only calls, and `reasoning_content` and
    `tool_calls` are there when the model reasoned, or called.
    """

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallItem, ...] | UnsetType = UNSET


class Choice(Record, frozen=True, kw_only=True):
    """A choice of a unary response."""

    index: int = 0
    message: AssistantMessage
    logprobs: ContentLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(Record, frozen=True, kw_only=True):
    """A unary response."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[Choice, ...]
    x_hf2q_timing: Timing | UnsetType = UNSET
    usage: Usage


class FunctionChunk(Record, frozen=True, kw_only=True):
    """A piece of a call's function; `name` is in the first of each call alone."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallChunk(Record, frozen=True, kw_only=True):
    """A piece of a call; `id` and `type` are in the first of each call alone."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionChunk


class ChunkDelta(Record, frozen=True, kw_only=True):
    """What a chunk adds to the answer; only what is set is sent."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallChunk, ...] | UnsetType = UNSET


class ChunkChoice(Record, frozen=True, kw_only=True):
    """The choice that a chunk adds to."""

    index: int = 0
    delta: ChunkDelta
    logprobs: ContentLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(Record, frozen=True, kw_only=True):
    """One frame of a stream. `usage` is null in all frames but the last when usage is asked for, else not there."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[ChunkChoice, ...]
    x_hf2q_timing: Timing | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET


class ModelRow(Record, frozen=True, kw_only=True):
    """One model of ``/v1/models``; the fields after `owned_by` are hf2q's own, and those after `loaded` are there when
    it is in memory and its file says them.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["hf2q"] = "hf2q"
    loaded: bool
    task: str | UnsetType = UNSET
    arch: str | UnsetType = UNSET
    backend: str | UnsetType = UNSET
    context_length: int | UnsetType = UNSET
    max_context_length: int | UnsetType = UNSET
    input_modalities: tuple[str, ...] | UnsetType = UNSET
    vision_projector: bool | UnsetType = UNSET
    quant_type: str | UnsetType = UNSET
    quant_bpw: float | UnsetType = UNSET
    moe_experts: int | UnsetType = UNSET
    moe_experts_per_tok: int | UnsetType = UNSET
    sliding_window: int | UnsetType = UNSET
    hidden_size: int | UnsetType = UNSET
    pooling: str | UnsetType = UNSET
    provenance: dict[str, str] | UnsetType = UNSET


class ModelList(Record, frozen=True, kw_only=True):
    """``/v1/models``."""

    object: Literal["list"] = "list"
    data: tuple[ModelRow, ...]


class Health(Record, frozen=True, kw_only=True):
    """``/health``: the process lives. `model`, `backend` and `context_length` are null until a model is loaded."""

    status: Literal["ok"]
    model: str | None
    backend: str | None
    context_length: int | None
    uptime_seconds: float


class Ready(Record, frozen=True, kw_only=True):
    """``/readyz``: whether requests are taken, and what it is that the server does otherwise."""

    ready: bool
    detail: str


def encode(value: Any) -> bytes:
    """`value` as JSON."""
    return msgspec.json.encode(value)
