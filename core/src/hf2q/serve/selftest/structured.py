"""Checks of answers that have a form: JSON by a schema, and tool calls."""

from __future__ import annotations

import json
from typing import Any

from hf2q.serve.selftest.asks import CHAT, Asks, said
from hf2q.serve.selftest.check import equal, expect, named, short, skip

LONG = 400
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome", "Tokyo"]},
        "large": {"type": "boolean"},
        "kinds": {"type": "array", "items": {"enum": ["old", "new"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["city", "large", "kinds"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells the {name.removeprefix('get_')} of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Paris", "Rome", "Tokyo"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("get_weather", "get_population")
]


def formatted(schema: Any) -> dict[str, Any]:
    """A response_format."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def schema(asks: Asks) -> None:
    for temperature, seed in ((0, 1), (1, 1), (1, 2), (2, 3)):
        more = {"temperature": temperature, "seed": seed, "response_format": formatted(SCHEMA)}
        response = asks.chat("Name a city.", max_completion_tokens=LONG, **more)
        _fits(said(response), f"at temperature {temperature}")
    _fits(
        said(asks.streamed("Name a city.", max_completion_tokens=LONG, response_format=formatted(SCHEMA))), "streamed"
    )


def _fits(answer: dict[str, Any], how: str) -> None:
    if answer["finish_reason"] == "length" and not answer["content"]:
        skip(f"the model reasoned for {LONG} tokens")  # what it writes then has no form
    equal(answer["finish_reason"], "stop", f"finish_reason {how}")
    found = json.loads(answer["content"])
    equal(set(found), {"city", "large", "kinds"}, f"the properties {how}")
    expect(found["city"] in ("Paris", "Rome", "Tokyo"), f"city is {short(found['city'])} {how}")
    expect(isinstance(found["large"], bool), f"large is {short(found['large'])} {how}")
    expect(1 <= len(found["kinds"]) <= 2 and set(found["kinds"]) <= {"old", "new"}, f"kinds {how}")


def any_object(asks: Asks) -> str | None:
    more = {"response_format": {"type": "json_object"}, "max_completion_tokens": LONG}
    answer = said(asks.chat("Answer with a small JSON object.", **more))
    if answer["finish_reason"] == "length":
        skip(f"the model wrote more than {LONG} tokens")
    expect(isinstance(json.loads(answer["content"]), dict), "the answer is no JSON object")
    return None


def unsupported(asks: Asks) -> None:
    body = asks.body(response_format=formatted({"type": "no such type"}))
    answer = asks.client.post(CHAT, body)
    equal(answer.status, 400, "the status for a schema that is none")
    expect(str(answer.body["error"]["param"]).startswith("response_format"), "param does not name response_format")


def _call(asks: Asks, choice: Any, *, stream: bool) -> dict[str, Any]:
    ask = asks.streamed if stream else asks.chat
    more = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "max_completion_tokens": LONG}
    if not stream:
        answer = asks.client.post(CHAT, asks.body("What is the weather in Rome?", **more))
        error = answer.body.get("error") or {}
        if answer.status == 400 and str(error.get("param")).startswith("tool") and "tool" in error["message"]:
            skip(error["message"])
    return said(ask("What is the weather in Rome?", **more))


def required(asks: Asks) -> None:
    for stream in (False, True):
        _one_call(_call(asks, "required", stream=stream), {"get_weather", "get_population"})


def chosen(asks: Asks) -> None:
    choice = {"type": "function", "function": {"name": "get_population"}}
    for stream in (False, True):
        _one_call(_call(asks, choice, stream=stream), {"get_population"})


def _one_call(answer: dict[str, Any], names: set[str]) -> None:
    equal(len(answer["calls"]), 1, "the number of calls")
    (call,) = answer["calls"]
    expect(call["name"] in names, f"the call is of {call['name']!r}")
    equal(list(json.loads(call["arguments"])), ["city"], "the arguments")
    expect(json.loads(call["arguments"])["city"] in ("Paris", "Rome", "Tokyo"), f"city in {call['arguments']}")
    expect(answer["finish_reason"] in ("tool_calls", "stop"), f"finish_reason is {answer['finish_reason']!r}")


def none(asks: Asks) -> None:
    equal(_call(asks, "none", stream=False)["calls"], [], "the calls with tool_choice none")


def automatic(asks: Asks) -> str:
    unary = _call(asks, "auto", stream=False)
    equal(_call(asks, "auto", stream=True), unary, "the stream")
    for call in unary["calls"]:
        expect(call["name"] in ("get_weather", "get_population"), f"the call is of {call['name']!r}")
        expect(isinstance(json.loads(call["arguments"]), dict), "the arguments are no object")
    return "the model called a tool" if unary["calls"] else "the model called no tool"


CHECKS = named(
    "structure",
    (
        ("json_schema holds at any temperature", schema),
        ("json_object is a JSON object", any_object),
        ("a schema that cannot be honoured is refused", unsupported),
        ("tool_choice required calls a tool", required),
        ("a chosen tool is the one called", chosen),
        ("tool_choice none calls none", none),
        ("tool_choice auto, streamed as unary", automatic),
    ),
)
