"""What all requests that generate have in common: their fields as they are sent, and as the engine takes them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hf2q.errors import RequestError
from hf2q.serve.sampling import REPETITION_PENALTY

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
_INT64 = Meta(ge=-(2**63), le=2**63 - 1)
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Bias = Annotated[float, Meta(ge=-100, le=100)]
_Stop = Annotated[str, Meta(min_length=1)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream shall hold."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SamplingBody(msgspec.Struct, kw_only=True):
    """The fields that every such request may have."""

    model: str
    stream: bool | None = None
    stop: _Stop | list[_Stop] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: _Share | None = None
    typical_p: _Share | None = None
    seed: Annotated[int, _INT64] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=REPETITION_PENALTY[0], le=REPETITION_PENALTY[1])] | None = None
    logit_bias: dict[str, _Bias] | None = None
    cache_salt: Annotated[str, Meta(max_length=1024)] | None = None
    user: str | None = None


class GenerationBody(SamplingBody, kw_only=True):
    """And those of requests for several choices."""

    n: Count | None = None
    stream_options: StreamOptions | None = None


def sampling_of(given: SamplingBody) -> dict[str, Any]:
    """The fields that the request sets, by the names of `SamplingParams`. Errors: RequestError."""
    found = {name: value for name in _SAMPLING if (value := getattr(given, name)) is not None}
    if found.get("top_k") == -1:
        found["top_k"] = 0  # vLLM's spelling of "all"
    if given.logit_bias:
        found["logit_bias"] = {_token(text): bias for text, bias in given.logit_bias.items()}
    return found


def sampling_of_choice(sampling: dict[str, Any], index: int) -> dict[str, Any]:
    """`sampling` for one of several choices: its own seed, so that they differ and each can be repeated."""
    if not index or "seed" not in sampling:
        return sampling
    return {**sampling, "seed": sampling["seed"] + index}


def stops_of(given: SamplingBody, limit: int) -> tuple[str, ...]:
    """The texts that end an answer. Errors: RequestError for more than `limit`."""
    found = (given.stop,) if isinstance(given.stop, str) else tuple(given.stop or ())
    if len(found) > limit:
        raise RequestError(
            f"stop has {len(found)} texts, of which at most {limit} are taken", param="stop", code="invalid_value"
        )
    return found


def choices_of(n: int | None, limit: int, prompts: int = 1) -> int:
    """How many choices for each prompt. Errors: RequestError for more than `limit` of them in all."""
    found = 1 if n is None else n
    if found * prompts > limit:
        what = f"n is {found}" if prompts == 1 else f"{prompts} prompts and n {found} are {found * prompts} choices"
        raise RequestError(f"{what}, of which at most {limit} are given", param="n", code="invalid_value")
    return found


def include_usage_of(options: StreamOptions | None, stream: bool) -> bool:
    """Whether a stream ends with token counts. Errors: RequestError for options without a stream."""
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


def _token(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and text == str(int(text))):
        raise RequestError(
            f"logit_bias has the key {text[:40]!r}, expected a token id", param="logit_bias", code="invalid_value"
        )
    return int(text)
