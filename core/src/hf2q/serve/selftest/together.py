"""Checks of several requests: at the same time, one after the other, and left by their client."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from hf2q.serve.selftest.asks import CHAT, Asks, said
from hf2q.serve.selftest.check import equal, expect, named, skip
from hf2q.serve.selftest.structured import formatted

STATUS = "/hf2q/v1/status"
PROMPTS = ("Describe a mountain.", "What is the capital of Japan?", "Tell a story about a cat.", "Count to twenty.")
_ENDLESS = {
    "type": "object",
    "properties": {"bits": {"type": "array", "items": {"type": "boolean"}, "minItems": 2000}},
    "required": ["bits"],
    "additionalProperties": False,
}
_WAIT_S = 20.0


def concurrent(asks: Asks) -> None:
    def ask(text: str) -> dict[str, Any]:
        return said(asks.chat(text))

    alone = [ask(text) for text in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        together = list(pool.map(ask, PROMPTS))
    for text, one, other in zip(PROMPTS, alone, together, strict=True):
        equal(other, one, f"the answer to {text!r} among others")


def reuse(asks: Asks) -> str:
    system = {"role": "system", "content": "You are a patient teacher. " * 20}

    def ask(text: str, salt: str) -> dict[str, Any]:
        return asks.chat(messages=[system, {"role": "user", "content": text}], cache_salt=salt)

    salt = f"selftest-{time.time_ns()}"
    ask(PROMPTS[0], salt)
    cached = 0
    for number, text in enumerate((PROMPTS[0], PROMPTS[1], PROMPTS[2])):
        warm = ask(text, salt)
        cold = ask(text, f"{salt}-{number}")
        equal(said(warm), said(cold), f"the answer to {text!r} with a cached beginning")
        details = [each["usage"].get("prompt_tokens_details") or {} for each in (warm, cold)]
        equal(details[1].get("cached_tokens", 0), 0, "cached_tokens with a salt of its own")
        cached += details[0].get("cached_tokens", 0)
    if not cached:
        skip("nothing was reused: the answers are the same, which says little")
    return f"{cached} tokens reused"


def gone(asks: Asks) -> None:
    before = _engine(asks)
    body = asks.body("Count from one to a thousand.", stream=True, max_completion_tokens=None)
    # with a form that takes long to fill, where forms are known
    long = {**body, "response_format": formatted(_ENDLESS)}
    if asks.client.post(CHAT, {**long, "stream": False, "max_completion_tokens": 1}).status == 200:
        body = long
        before = _engine(asks)
    connection = asks.client.opened("POST", CHAT, body)
    # the response holds the socket too: closing the connection alone would leave it open
    with closing(connection), connection.getresponse() as response:
        expect(response.status == 200, f"the stream is {response.status}")
        response.read(64)
    end = time.monotonic() + _WAIT_S
    now = _engine(asks)
    # counted first, for it may not have reached a slot yet when its client goes
    while not (_ended(now) > _ended(before) and all(slot["phase"] == "idle" for slot in now["slots"])):
        expect(time.monotonic() < end, f"{_WAIT_S:g} s after its client had gone the request was not cancelled")
        time.sleep(0.02)
        now = _engine(asks)
    if now["finished"] > before["finished"]:
        skip("the answer was complete before its client had gone")
    expect(now["cancelled"] > before["cancelled"], "the request was not cancelled")


def _ended(engine: dict[str, Any]) -> int:
    """How many requests have come to an end of any kind."""
    return int(engine["finished"] + engine["cancelled"] + engine["failed"])


def _engine(asks: Asks) -> dict[str, Any]:
    status = asks.optional(asks.client.get(STATUS))
    found: dict[str, Any] = next(each["engine"] for each in status["models"] if each["id"] == asks.model)
    return found


CHECKS = named(
    "together",
    (
        ("four at a time answer as one at a time", concurrent),
        ("a cached beginning changes nothing", reuse),
        ("a client that goes away ends its request", gone),
    ),
)
