"""What becomes of each field of a chat request: honoured, taken as a hint, or refused.

A field that is neither honoured nor a pure hint is refused by name, unless its value asks for nothing (null, or the
default that the server gives anyway). Nothing is accepted and ignored. docs/reference/http.md is written from these
tables.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from hf2q.errors import RequestError, listing

HONOURED: dict[str, str] = {
    "model": "the model asked for: the name of its file without `.gguf`; another one is 404",
    "messages": "the conversation, see below",
    "max_completion_tokens": "most tokens to generate, reasoning included; without it as many as the context holds",
    "max_tokens": "older name of the same; both may be given when they agree",
    "stop": "texts that end the answer and are not part of it; they are looked for in reasoning too",
    "temperature": "0 takes the likeliest token each time",
    "top_p": "sample among the likeliest tokens that have this share together; judged before temperature",
    "top_k": "sample among the k likeliest tokens; 0 or -1 for all",
    "min_p": "leave out tokens less likely than this times the likeliest; judged before temperature",
    "seed": "fixes every draw: the same request with the same seed has the same answer, whatever others ask meanwhile",
    "frequency_penalty": "taken off a token's logit for each time the answer has it",
    "presence_penalty": "taken off a token's logit once the answer has it",
    "repetition_penalty": "weakens tokens of the prompt and the answer; 1 does nothing",
    "logit_bias": "token id (as text) to a number from -100 to 100 that is added to its logit",
    "stream": "true sends the answer as server-sent events",
    "stream_options": "with `stream` only: `include_usage` sends a last chunk with token counts; "
    "`include_obfuscation` is refused when true",
    "chat_template_kwargs": "variables of the chat template, such as `enable_thinking`; one that the template does not "
    "read is refused",
}
"""Name -> what it does."""

HINTS = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Accepted and without effect: they ask for nothing that shows in the answer."""

REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "audio": ("this server gives text only", ()),
    "function_call": ("tools are not available", ("none",)),
    "functions": ("tools are not available", ([],)),
    "logprobs": ("log probabilities are not available", (False,)),
    "modalities": ("this server gives text only", (["text"],)),
    "moderation": ("moderation is not available", ()),
    "n": ("each request gets one choice", (1,)),
    "parallel_tool_calls": ("tools are not available", (True,)),
    "reasoning_effort": ("the effort of reasoning cannot be set", ()),
    "response_format": ("answers cannot be held to a format", ({"type": "text"},)),
    "tool_choice": ("tools are not available", ("none",)),
    "tools": ("tools are not available", ([],)),
    "top_logprobs": ("log probabilities are not available", ()),
    "web_search_options": ("this server does not search", ()),
}
"""Name -> why it is refused, and the values that ask for nothing."""

_ALL = HONOURED.keys() | HINTS | REFUSED.keys()


def check_fields(fields: Mapping[str, msgspec.Raw]) -> None:
    """Errors: RequestError naming the first field that is unknown, or refused and set."""
    for name, raw in fields.items():
        if name in REFUSED:
            _check_refused(name, raw)
        elif name not in _ALL:
            raise _unknown(name)


def _check_refused(name: str, raw: msgspec.Raw) -> None:
    reason, neutral = REFUSED[name]
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        value = raw  # a number beyond all bounds, or lists without end: it asks for something in any case
    # 1 == True, so the type decides too
    if value is None or any(type(value) is type(one) and value == one for one in neutral):
        return
    given = memoryview(raw)
    text = bytes(given[:60]).decode("utf-8", "ignore") + ("..." if len(given) > 60 else "")
    only = f"; only {_json(neutral[0])} is accepted" if neutral else ""
    raise RequestError(f"{name} is {text}, but {reason}{only}", param=name, code="unsupported_parameter")


def _unknown(name: str) -> RequestError:
    name = name[:100]
    near = difflib.get_close_matches(name, sorted(_ALL), n=1, cutoff=0.7)
    hint = f"did you mean {near[0]!r}?" if near else f"fields with an effect: {listing(HONOURED, limit=20)}"
    return RequestError(f"unknown field {name!r}", hint=hint, param=name, code="unknown_parameter")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
