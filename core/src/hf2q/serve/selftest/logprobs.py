"""Checks of log probabilities, in chats and in completions."""

from __future__ import annotations

from typing import Any

from hf2q.serve.selftest.asks import Asks, said
from hf2q.serve.selftest.check import equal, expect, named


def shape(asks: Asks) -> None:
    response = asks.chat(logprobs=True, top_logprobs=3)
    equal(said(response), said(asks.greedy), "the answer with logprobs")
    entries = response["choices"][0]["logprobs"]["content"]
    expect(entries, "there are none")
    for entry in entries:
        _entry(entry)
        equal(len(entry["top_logprobs"]), 3, "the number of top_logprobs")
        values = [each["logprob"] for each in entry["top_logprobs"]]
        equal(values, sorted(values, reverse=True), "the order of top_logprobs")
        for each in entry["top_logprobs"]:
            _entry(each)
        # greedily the likeliest token is taken
        expect(abs(values[0] - entry["logprob"]) < 1e-3, f"{entry['token']!r} was taken, and is not the likeliest")


def _entry(entry: dict[str, Any]) -> None:
    expect(isinstance(entry["token"], str), "token is no text")
    expect(entry["logprob"] <= 0, f"logprob is {entry['logprob']}")
    expect(entry["bytes"] is None or all(0 <= byte <= 255 for byte in entry["bytes"]), "bytes are no bytes")


def spelled(asks: Asks) -> None:
    response = asks.chat(logprobs=True)
    entries = response["choices"][0]["logprobs"]["content"]
    expect(all(entry["top_logprobs"] == [] for entry in entries), "top_logprobs were not asked for")
    text = b"".join(bytes(entry["bytes"] or ()) for entry in entries).decode("utf-8", "ignore")
    content = said(response)["content"].strip()
    expect(content in text, "the tokens do not spell the answer")


def streamed(asks: Asks) -> None:
    whole = asks.chat(logprobs=True, top_logprobs=1)["choices"][0]["logprobs"]["content"]
    folded = asks.streamed(logprobs=True, top_logprobs=1)["choices"][0]["logprobs"]["content"]
    equal([entry["token"] for entry in folded], [entry["token"] for entry in whole], "the tokens of the stream")


CHECKS = named(
    "logprobs",
    (
        ("their shape, the likeliest first", shape),
        ("their bytes spell the answer", spelled),
        ("the stream has the same ones", streamed),
    ),
)
