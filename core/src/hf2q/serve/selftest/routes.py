"""Checks of the other routes: completions, responses, tokens, embeddings."""

from __future__ import annotations

import base64
import struct
from typing import Any

from hf2q.serve.selftest.asks import MAX_TOKENS, QUESTION, Asks
from hf2q.serve.selftest.check import equal, expect, named, skip


def completions(asks: Asks) -> None:
    body = {"model": asks.model, "prompt": "The sea is", "max_tokens": 16, "temperature": 0}
    response = asks.optional(asks.client.post("/v1/completions", body))
    equal(response["object"], "text_completion", "object")
    (choice,) = response["choices"]
    found = asks.client.stream("/v1/completions", {**body, "stream": True})
    text = "".join(each["text"] for chunk in found.chunks for each in chunk["choices"])
    equal(text, choice["text"], "the stream, put together,")
    equal(found.data[-1], "[DONE]", "the last frame")


def tokens(asks: Asks) -> None:
    text = "A walk by the sea, über alles – 海."
    found = asks.optional(asks.client.post("/tokenize", {"model": asks.model, "content": text}))
    expect(found["tokens"], "there are no tokens")
    back = asks.optional(asks.client.post("/detokenize", {"model": asks.model, "tokens": found["tokens"]}))
    equal(back["content"].strip(), text, "the text of the tokens")


def responses(asks: Asks) -> None:
    body = {"model": asks.model, "input": QUESTION, "max_output_tokens": MAX_TOKENS, "temperature": 0, "store": False}
    response = asks.optional(asks.client.post("/v1/responses", body))
    equal(response["object"], "response", "object")
    expect(response["status"] in ("completed", "incomplete"), f"status is {response['status']!r}")
    messages = [item for item in response["output"] if item["type"] == "message"]
    text = "".join(part["text"] for item in messages for part in item["content"])
    content = asks.greedy["choices"][0]["message"]["content"] or ""
    equal(text, content, "the text, against that of a chat,")


def _vectors(asks: Asks, **more: Any) -> list[Any]:
    answer = asks.client.post("/v1/embeddings", {"model": asks.model, **more})
    if answer.status in (400, 501) and "embed" in str(answer.body).lower():
        skip("this is no embedding model")
    return [row["embedding"] for row in asks.optional(answer)["data"]]


def embeddings(asks: Asks) -> str:
    one, other = "The sea is calm.", "Stock prices fell."
    both = _vectors(asks, input=[one, other], encoding_format="float")
    (alone,) = _vectors(asks, input=one, encoding_format="float")
    length = sum(value * value for value in alone) ** 0.5
    expect(abs(length - 1) < 1e-3, f"the length of a vector is {length}")
    expect(max(abs(a - b) for a, b in zip(alone, both[0], strict=True)) < 1e-4, "a vector depends on its neighbours")
    expect(both[0] != both[1], "two texts have the same vector")
    (coded,) = _vectors(asks, input=one, encoding_format="base64")
    plain = struct.unpack(f"<{len(alone)}f", base64.b64decode(coded))
    expect(max(abs(a - b) for a, b in zip(alone, plain, strict=True)) < 1e-6, "base64 has other numbers")
    return f"{len(alone)} dimensions"


CHAT_ROUTES = named(
    "routes",
    (
        ("/v1/completions, streamed as unary", completions),
        ("/v1/responses says what a chat says", responses),
        ("/tokenize and /detokenize are each other's inverse", tokens),
    ),
)
EMBEDDINGS = named("routes", (("/v1/embeddings", embeddings),))
