"""Checks that what cannot be honoured is refused: status, and the field that is named."""

from __future__ import annotations

from typing import Any, NamedTuple

from hf2q.serve.selftest.asks import CHAT, Asks
from hf2q.serve.selftest.check import equal, expect, named, short

_MISSING = object()


class Bad(NamedTuple):
    """Fields that make a request wrong, the status it deserves, and how `param` begins."""

    fields: dict[str, Any]
    status: int = 400
    param: str | None = None


BAD = (
    Bad({"model": "no-such-model"}, 404, "model"),
    Bad({"model": _MISSING}, 400, "model"),
    Bad({"messages": []}, 400, "messages"),
    Bad({"messages": "hello"}, 400, "messages"),
    Bad({"messages": [{"role": "nobody", "content": "x"}]}, 400, "messages"),
    Bad({"messages": [{"role": "user"}]}, 400, "messages"),
    Bad({"temperature": 3}, 400, "temperature"),
    Bad({"temperature": "warm"}, 400, "temperature"),
    Bad({"temperature": True}, 400, "temperature"),
    Bad({"top_p": -0.1}, 400, "top_p"),
    Bad({"n": 0}, 400, "n"),
    Bad({"max_completion_tokens": 0}, 400, "max_completion_tokens"),
    Bad({"max_completion_tokens": 1.5}, 400, "max_completion_tokens"),
    Bad({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop"),
    Bad({"seed": "x"}, 400, "seed"),
    Bad({"logit_bias": {"x": 1}}, 400, "logit_bias"),
    Bad({"top_logprobs": 2}, 400, "top_logprobs"),
    Bad({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    Bad({"stream": "yes"}, 400, "stream"),
    Bad({"stream_options": {"include_usage": True}}, 400, "stream_options"),
    Bad({"tool_choice": "required"}, 400, "tool_choice"),
    Bad({"response_format": {"type": "xml"}}, 400, "response_format"),
    Bad({"no_such_field": 1}, 400, "no_such_field"),
)


def fields(asks: Asks) -> str:
    for bad in BAD:
        body = {name: value for name, value in {**asks.body(), **bad.fields}.items() if value is not _MISSING}
        for stream in (False, True) if "stream" not in str(bad.fields) else (False,):
            answer = asks.client.post(CHAT, {**body, "stream": True} if stream else body)
            what = short({name: "(left out)" if value is _MISSING else value for name, value in bad.fields.items()})
            equal(answer.status, bad.status, f"the status for {what}")
            error = answer.body["error"]
            equal(set(error), {"message", "type", "param", "code"}, "the fields of error")
            expect(str(error["param"]).startswith(str(bad.param)), f"param for {what} is {error['param']!r}")
    return f"{len(BAD)} bad requests"


def bodies(asks: Asks) -> None:
    for body in (b"", b"{", b"[]", b'{"model": NaN}', b"\xff"):
        equal(asks.client.post(CHAT, body).status, 400, f"the status for the body {body!r}")
    answer = asks.client.send("POST", CHAT, b"{}", {"content-type": "text/plain"})
    equal(answer.status, 415, "the status for text/plain")


def paths(asks: Asks) -> None:
    answer = asks.client.get("/no/such/path")
    equal(answer.status, 404, "the status")
    expect("/no/such/path" in answer.body["error"]["message"], "the message does not name the path")
    answer = asks.client.get(CHAT)
    equal(answer.status, 405, "the status of GET")
    expect("POST" in answer.headers.get("allow", ""), "allow does not name POST")


def context(asks: Asks) -> None:
    rows = {row["id"]: row for row in asks.client.get("/v1/models").body["data"]}
    length = rows[asks.model]["context_length"]
    answer = asks.client.post(CHAT, asks.body("sea " * (length + 1)))
    if answer.status == 413:  # the limit of bodies comes first with a very long context
        return
    equal((answer.status, answer.body["error"]["code"]), (400, "context_length_exceeded"), "status and code")


CHECKS = named(
    "refusals",
    (
        ("wrong fields are refused by name, streamed or not", fields),
        ("wrong bodies are refused", bodies),
        ("wrong paths and methods are refused", paths),
        ("a prompt that does not fit is refused", context),
    ),
)
