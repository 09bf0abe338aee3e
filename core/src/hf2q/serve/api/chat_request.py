"""A chat request: its wire form, and the checked form that the rest of the server works with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hf2q.errors import RequestError
from hf2q.serve.api.body import decode_as, decode_object
from hf2q.serve.api.fields import check_fields
from hf2q.serve.chat import Message
from hf2q.serve.sampling import REPETITION_PENALTY
from hf2q.types import Record

MAX_STOPS = 4
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
_INT64 = Meta(ge=-(2**63), le=2**63 - 1)
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Bias = Annotated[float, Meta(ge=-100, le=100)]
_Stop = Annotated[str, Meta(min_length=1)]


class ChatRequest(Record, frozen=True, kw_only=True):
    """What a client asks for, checked.

    sampling   only the fields that the request sets, by the names of `SamplingParams`
    options    variables for the chat template
    max_tokens None: as many as the context holds
    """

    model: str
    messages: tuple[Message, ...]
    stream: bool
    include_usage: bool
    max_tokens: int | None
    stop: tuple[str, ...]
    sampling: dict[str, Any]
    options: dict[str, Any]


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """One part of a message's content; those that are no text are known so that they can be refused by name."""

    type: str
    text: str | None = None
    image_url: Any = None
    video_url: Any = None
    input_audio: Any = None
    file: Any = None
    refusal: Any = None


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One message as it is sent."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[Part], Meta(min_length=1)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    audio: Any = None
    annotations: list[Any] | None = None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream shall hold."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Body(msgspec.Struct):
    """The request as it is sent; `hf2q.serve.api.fields` says what each field does."""

    # fields that are refused are not here: `check_fields` has seen to them
    model: str
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: _Share | None = None
    seed: Annotated[int, _INT64] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=REPETITION_PENALTY[0], le=REPETITION_PENALTY[1])] | None = None
    logit_bias: dict[str, _Bias] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # hints
    metadata: dict[str, str] | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


def parse_chat_request(body: bytes) -> ChatRequest:
    """The request in `body`. Errors: RequestError naming the field by its path."""
    check_fields(decode_object(body))
    given = decode_as(body, Body)
    stream = bool(given.stream)
    stop = given.stop
    return ChatRequest(
        model=given.model,
        messages=tuple(_message(message, f"messages[{i}]") for i, message in enumerate(given.messages)),
        stream=stream,
        include_usage=_include_usage(given.stream_options, stream),
        max_tokens=_max_tokens(given),
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        sampling=_sampling(given),
        options=given.chat_template_kwargs or {},
    )


def _sampling(given: Body) -> dict[str, Any]:
    found = {name: value for name in _SAMPLING if (value := getattr(given, name)) is not None}
    if found.get("top_k") == -1:
        found["top_k"] = 0  # vLLM's spelling of "all"
    if given.logit_bias:
        found["logit_bias"] = {_token(text): bias for text, bias in given.logit_bias.items()}
    return found


def _token(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and text == str(int(text))):
        raise RequestError(
            f"logit_bias has the key {text[:40]!r}, expected a token id", param="logit_bias", code="invalid_value"
        )
    return int(text)


def _include_usage(options: StreamOptions | None, stream: bool) -> bool:
    if options is None:
        return False
    if not stream and (options.include_usage is not None or options.include_obfuscation is not None):
        raise RequestError("stream_options are for requests with stream true", param="stream_options")
    if options.include_obfuscation:
        raise RequestError(
            "obfuscation of streams is not available",
            param="stream_options.include_obfuscation",
            code="unsupported_parameter",
        )
    return bool(options.include_usage)


def _max_tokens(given: Body) -> int | None:
    new, old = given.max_completion_tokens, given.max_tokens
    if new is not None and old is not None and new != old:
        raise RequestError(
            f"max_tokens is {old} and max_completion_tokens is {new}; give one of them", param="max_tokens"
        )
    return old if new is None else new


def _message(given: ChatMessage, place: str) -> Message:
    if given.role in ("tool", "function"):
        raise _unsupported(f"{place}.role", f"is {given.role!r}, but tools are not available")
    for name in ("tool_calls", "tool_call_id", "function_call"):
        if getattr(given, name):
            raise _unsupported(f"{place}.{name}", "is set, but tools are not available")
    for name in ("audio", "annotations", "refusal"):
        if getattr(given, name):
            raise _unsupported(f"{place}.{name}", "is set, but cannot be shown to the model")
    if given.name:
        raise _unsupported(f"{place}.name", "is set, but names of participants are not shown to the model")
    reasoning = _reasoning(given, place)
    return Message(
        role="system" if given.role == "developer" else given.role,
        content=_content(given, place, reasoning is not None),
        reasoning=reasoning,
    )


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


def _content(given: ChatMessage, place: str, has_reasoning: bool) -> str | tuple[str, ...]:
    if given.content is None:
        if has_reasoning:
            return ""
        raise RequestError(f"{place}.content is missing", param=f"{place}.content", code="missing_required_parameter")
    if isinstance(given.content, str):
        return given.content
    return tuple(_text(part, f"{place}.content[{i}]") for i, part in enumerate(given.content))


def _text(part: Part, place: str) -> str:
    if part.type != "text":
        raise _unsupported(f"{place}.type", f"is {part.type!r}, but this server reads text only")
    others = [name for name in ("image_url", "video_url", "input_audio", "file", "refusal") if getattr(part, name)]
    if others:
        raise _unsupported(f"{place}.{others[0]}", "is set in a part of type 'text'")
    if part.text is None:
        raise RequestError(f"{place}.text is missing", param=f"{place}.text", code="missing_required_parameter")
    return part.text


def _unsupported(param: str, why: str) -> RequestError:
    return RequestError(f"{param} {why}", param=param, code="unsupported_value")
