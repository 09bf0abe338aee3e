"""Checks of chat answers: the stream, token counts, limits, stop texts, seeds."""

from __future__ import annotations

from typing import Any

from hf2q.serve.selftest.asks import CHAT, MAX_TOKENS, QUESTION, Asks, said
from hf2q.serve.selftest.check import equal, expect, named, skip
from hf2q.serve.selftest.client import DONE


def shape(asks: Asks) -> None:
    response = asks.greedy
    equal((response["object"], response["model"]), ("chat.completion", asks.model), "object and model")
    (choice,) = response["choices"]
    equal((choice["index"], choice["message"]["role"]), (0, "assistant"), "index and role")
    expect(choice["finish_reason"] in ("stop", "length"), f"finish_reason is {choice['finish_reason']!r}")


def counts(asks: Asks) -> None:
    usage = asks.greedy["usage"]
    equal(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"], "total_tokens")
    expect(usage["prompt_tokens"] > 0, "prompt_tokens is 0")
    expect(0 < usage["completion_tokens"] <= MAX_TOKENS, f"completion_tokens is {usage['completion_tokens']}")
    if asks.greedy["choices"][0]["finish_reason"] == "length":
        equal(usage["completion_tokens"], MAX_TOKENS, "completion_tokens of an answer cut at the limit")


def repeated(asks: Asks) -> None:
    equal(said(asks.chat()), said(asks.greedy), "the second answer")


def folded(asks: Asks) -> None:
    response = asks.streamed()
    equal(said(response), said(asks.greedy), "the stream, put together,")
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        equal(response["usage"][name], asks.greedy["usage"][name], f"usage.{name} of the stream")


def framing(asks: Asks) -> None:
    found = asks.client.stream(CHAT, asks.body(stream=True))
    equal(found.headers["content-type"].partition(";")[0], "text/event-stream", "content-type")
    frames = found.raw.split(b"\n\n")
    equal(frames.pop(), b"", "what follows the last frame")
    wrong = [frame for frame in frames if not frame.startswith((b"data: ", b":")) or b"\n" in frame]
    expect(not wrong, f"a frame is {wrong[:1]}")
    equal(found.data[-1], DONE, "the last frame")
    equal(found.data.count(DONE), 1, "the number of [DONE]")
    chunks = found.chunks
    for name in ("id", "created", "model"):
        equal(len({chunk[name] for chunk in chunks}), 1, f"the number of different values of {name}")
    equal({chunk["object"] for chunk in chunks}, {"chat.completion.chunk"}, "object")
    expect(all("usage" not in chunk or chunk["usage"] is None for chunk in chunks), "usage was not asked for")


def usage_chunk(asks: Asks) -> None:
    chunks = asks.client.stream(CHAT, asks.body(stream=True, stream_options={"include_usage": True})).chunks
    equal(chunks[-1]["choices"], [], "choices of the last chunk")
    expect(chunks[-1]["usage"], "the last chunk has no usage")
    expect(all(chunk["usage"] is None for chunk in chunks[:-1]), "usage is not null in the other chunks")


def limits(asks: Asks) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        response = asks.chat(**_only(field))
        usage = response["usage"]
        equal(usage["completion_tokens"], 1, f"completion_tokens with {field} 1")
        expect(response["choices"][0]["finish_reason"] in ("length", "stop"), "finish_reason")


def _only(field: str) -> dict[str, Any]:
    """One token, said by `field` alone."""
    return {"max_completion_tokens": None, field: 1}


def nulls(asks: Asks) -> None:
    names = ("stop", "seed", "top_p", "logit_bias", "max_tokens", "stream_options", "logprobs", "tools", "n", "user")
    fields: dict[str, Any] = dict.fromkeys(names)
    equal(said(asks.chat(**fields)), said(asks.greedy), "the answer with null in fields")


def stop(asks: Asks) -> None:
    before = said(asks.greedy)
    content, thought = before["content"], before["reasoning"]
    text = next(
        (content[at : at + 6] for at in range(3, len(content) - 6) if content.find(content[at : at + 6]) == at
         and content[at : at + 6] not in thought and content[at : at + 6].isprintable()),
        None,
    )  # fmt: skip
    if text is None:
        skip("the answer is too short to be cut")
    for response in (asks.chat(stop=[text, "\x00never"]), asks.streamed(stop=text)):
        after = said(response)
        equal(after["content"].strip(), content[: content.index(text)].strip(), f"the content before {text!r}")
        equal(after["finish_reason"], "stop", "finish_reason")


def seed(asks: Asks) -> None:
    def drawn(number: int) -> object:
        return said(asks.chat(temperature=1, seed=number))

    first = drawn(7)
    equal(drawn(7), first, "the answer with the same seed")
    streamed = said(asks.streamed(temperature=1, seed=7))
    equal(streamed, first, "the stream with the same seed")


def several(asks: Asks) -> None:
    response = asks.chat(n=2)
    equal([choice["index"] for choice in response["choices"]], [0, 1], "the indices")
    for number in (0, 1):
        equal(said(response, number), said(asks.greedy), f"greedy choice {number}")
    equal(response["usage"]["prompt_tokens"], asks.greedy["usage"]["prompt_tokens"], "prompt_tokens, counted once,")


def parts(asks: Asks) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": QUESTION}]}
    equal(said(asks.chat(messages=[message])), said(asks.greedy), "the answer to a list of parts")


CHECKS = named(
    "chat",
    (
        ("the response has OpenAI's shape", shape),
        ("token counts add up", counts),
        ("a greedy answer repeats", repeated),
        ("the stream, folded, is the unary response", folded),
        ("frames are as SDKs read them", framing),
        ("usage comes in a chunk of its own when asked for", usage_chunk),
        ("max_tokens and max_completion_tokens", limits),
        ("null is as if left out", nulls),
        ("stop texts end the answer and are not in it", stop),
        ("a seed fixes the answer", seed),
        ("n makes choices", several),
        ("content as a list of parts", parts),
    ),
)
