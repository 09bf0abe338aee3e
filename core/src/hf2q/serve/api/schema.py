"""What the server sends: OpenAI's response objects, and hf2q's own for health."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from hf2q.types import Record

FinishReason = Literal["stop", "length"]


class PromptTokensDetails(Record, frozen=True, kw_only=True):
    """Where prompt tokens came from."""

    cached_tokens: int = 0


class CompletionTokensDetails(Record, frozen=True, kw_only=True):
    """What completion tokens were spent on."""

    reasoning_tokens: int = 0


class Usage(Record, frozen=True, kw_only=True):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class AssistantMessage(Record, frozen=True, kw_only=True):
    """The answer of a unary response. `reasoning_content` is there when the model reasoned."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET


class Choice(Record, frozen=True, kw_only=True):
    """The one choice of a unary response."""

    index: int = 0
    message: AssistantMessage
    logprobs: None = None
    finish_reason: FinishReason


class ChatCompletion(Record, frozen=True, kw_only=True):
    """A unary response."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[Choice, ...]
    usage: Usage


class ChunkDelta(Record, frozen=True, kw_only=True):
    """What a chunk adds to the answer; only what is set is sent."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChunkChoice(Record, frozen=True, kw_only=True):
    """The one choice of a chunk."""

    index: int = 0
    delta: ChunkDelta
    logprobs: None = None
    finish_reason: FinishReason | None = None


class ChatChunk(Record, frozen=True, kw_only=True):
    """One frame of a stream. `usage` is null in all frames but the last when usage is asked for, else not there."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[ChunkChoice, ...]
    usage: Usage | UnsetType | None = UNSET


class ModelRow(Record, frozen=True, kw_only=True):
    """One model of ``/v1/models``; the fields after `owned_by` are hf2q's own and absent while it loads."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["hf2q"] = "hf2q"
    loaded: bool
    arch: str | UnsetType = UNSET
    backend: str | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


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
