"""A request to continue texts: its wire form, and the checked form that the rest of the server works with."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from hf2q.errors import RequestError
from hf2q.serve.api.asked import GenerationBody, choices_of, include_usage_of, sampling_of, stops_of
from hf2q.serve.api.body import decode_as, decode_object
from hf2q.serve.api.chat_fields import GENERATION, SAMPLING
from hf2q.serve.api.fields import Fields
from hf2q.serve.api.settings import ApiSettings
from hf2q.types import Record

MAX_TOKENS = 16
"""Where the request does not say; OpenAI's default."""

MOST_LOGPROBS = 5
"""OpenAI's limit for completions."""

COMPLETIONS = Fields(
    honoured={
        "model": "the model asked for, by an id of `/v1/models`; another one is 404",
        "prompt": "a text, a list of texts, token ids, or a list of lists of token ids; marks of a dialogue that a "
        "text spells out are read as such, and it gets BOS where the model wants it, token ids get nothing",
        "max_tokens": f"most tokens to generate, {MAX_TOKENS} without it; 0 with `echo` gives the prompt back",
        "stop": "texts that end the answer and are not part of it",
        **SAMPLING,
        **GENERATION,
        "echo": "true puts the prompt before the answer, and its tokens into `logprobs`",
        "logprobs": f"0 to {MOST_LOGPROBS}: log probabilities of tokens, and of so many of the likeliest at each place",
        "best_of": "the same number as `n`; more are refused",
    },
    hints=frozenset({"user"}),
    refused={"suffix": ("completions in the middle of a text are not available", ("",))},
)
"""What becomes of each field."""


class Body(GenerationBody, kw_only=True):
    """The request as it is sent; `COMPLETIONS` says what each field does."""

    prompt: str | Annotated[list[Any], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class CompletionRequest(Record, frozen=True, kw_only=True):
    """What a client asks for, checked.

    prompts   texts, or token ids
    n         choices for each prompt
    logprobs  so many of the likeliest tokens with each; None: no log probabilities
    sampling  only the fields that the request sets, by the names of `SamplingParams`
    salt      what keeps prefixes apart, None where the request says nothing
    """

    model: str
    prompts: tuple[str | tuple[int, ...], ...]
    n: int
    stream: bool
    include_usage: bool
    max_tokens: int
    echo: bool
    stop: tuple[str, ...]
    logprobs: int | None
    sampling: dict[str, Any]
    salt: str | None


def parse_completion_request(body: bytes, settings: ApiSettings) -> CompletionRequest:
    """The request in `body`. Errors: RequestError naming the field by its path."""
    COMPLETIONS.check(decode_object(body))
    given = decode_as(body, Body)
    stream, echo = bool(given.stream), bool(given.echo)
    prompts = prompts_of(given.prompt, "prompt")
    n = choices_of(given.n, settings.max_choices, len(prompts))
    if given.best_of is not None and given.best_of != n:
        raise RequestError(
            f"best_of is {given.best_of}, but no choices are made and thrown away; only n, {n}, is accepted",
            param="best_of",
            code="unsupported_parameter",
        )
    limit = MAX_TOKENS if given.max_tokens is None else given.max_tokens
    if not limit and not echo:
        raise RequestError("max_tokens is 0, which is for requests with echo", param="max_tokens", code="invalid_value")
    return CompletionRequest(
        model=given.model,
        prompts=prompts,
        n=n,
        stream=stream,
        include_usage=include_usage_of(given.stream_options, stream),
        max_tokens=limit,
        echo=echo,
        stop=stops_of(given, settings.max_stops),
        logprobs=given.logprobs,
        sampling=sampling_of(given),
        salt=given.cache_salt,
    )


def prompts_of(given: str | list[Any], param: str) -> tuple[str | tuple[int, ...], ...]:
    """One text or list of token ids for each prompt. Errors: RequestError naming the first entry that is neither."""
    if isinstance(given, str):
        return (given,)
    if all(_is_token(one) for one in given):
        return (tuple(given),)
    found: list[str | tuple[int, ...]] = []
    kind = type(given[0])
    for i, one in enumerate(given):
        if kind is str and isinstance(one, str):
            found.append(one)
        elif kind is list and isinstance(one, list) and one and all(_is_token(token) for token in one):
            found.append(tuple(one))
        else:
            place = f"{param}[{i}]"
            raise RequestError(
                f"{place} is {one!r:.60}; expected {param} to be a text, a list of texts, token ids, or a list of "
                "lists of token ids",
                param=place,
                code="invalid_value",
            )
    return tuple(found)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
