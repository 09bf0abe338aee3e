"""Several choices, log probabilities, and what else a chat request can set."""

import json

import openai
import pytest

from hf2q.serve.api.choices import cache_scope
from hf2q.serve.api.settings import ApiSettings
from hf2q.testing.scripted import scripted_tokenizer

CHAT = {"model": "scripted", "temperature": 0}


@pytest.fixture(scope="module")
def client(site):
    with openai.OpenAI(base_url=f"{site.base}/v1", api_key="none", max_retries=0, timeout=30) as found:
        yield found


@pytest.fixture
def seen(site, monkeypatch):
    """The requests that reach the engine."""
    found = []
    submit = site.engine.submit
    monkeypatch.setattr(site.engine, "submit", lambda request: found.append(request) or submit(request))
    return found


def says(text):
    return [{"role": "user", "content": text}]


def test_choices(client):
    answer = client.chat.completions.create(messages=says("Tōkyō"), n=3, **CHAT)
    assert [(c.index, c.message.content, c.finish_reason) for c in answer.choices] == [
        (i, "Tōkyō", "stop") for i in range(3)
    ]
    one = client.chat.completions.create(messages=says("Tōkyō"), **CHAT).usage
    assert answer.usage.prompt_tokens == one.prompt_tokens
    assert answer.usage.completion_tokens == 3 * one.completion_tokens
    assert answer.usage.total_tokens == one.prompt_tokens + 3 * one.completion_tokens


def test_choices_in_a_stream(client):
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(messages=says("abc"), n=3, stream=True, stream_options=options, **CHAT)
    )
    assert [c.choices[0].index for c in chunks[:3]] == [0, 1, 2]
    assert all(c.choices[0].delta.role == "assistant" for c in chunks[:3])
    assert not any(c.choices and c.choices[0].delta.role for c in chunks[3:])
    for index in range(3):
        own = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == index]
        assert "".join(choice.delta.content or "" for choice in own) == "abc"
        assert [choice.finish_reason for choice in own if choice.finish_reason] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 3 * 4
    with client.chat.completions.stream(messages=says("abc"), n=2, **CHAT) as events:
        final = events.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["abc", "abc"]


def test_each_choice_draws_for_itself(site, client, seen):
    client.chat.completions.create(messages=says("a"), n=3, seed=7, **CHAT)
    assert [request.sampling.seed for request in seen] == [7, 8, 9]
    assert len({request.prompt_ids for request in seen}) == 1
    seen.clear()
    site.json("POST", "/v1/chat/completions", site.user("a", n=2), ["x-request-id: mine"])
    assert [request.sampling.seed for request in seen] == [None, None]
    assert [request.id for request in seen] == ["mine/0", "mine/1"]


def test_choices_are_all_or_none(running):
    with running(capacity=2, slots=1, settings=ApiSettings(max_choices=8)) as site:
        status, _, body = site.json("POST", "/v1/chat/completions", site.user("a", n=9))
        assert (status, body["error"]["param"], body["error"]["code"]) == (400, "n", "invalid_value")
        status, _, body = site.json("POST", "/v1/chat/completions", site.user("a" * 50, n=8))
        assert (status, body["error"]["code"]) == (429, "queue_full")
        site.wait_for(lambda: not site.engine.active and not site.engine.waiting)
        assert site.json("POST", "/v1/chat/completions", site.user("a", n=2))[0] == 200


def test_a_client_that_leaves_ends_all_choices(running, monkeypatch):
    handles = []
    with running(before=lambda rows, tokens: None) as site:
        submit = site.engine.submit
        monkeypatch.setattr(site.engine, "submit", lambda request: handles.append(submit(request)) or handles[-1])
        with site.connect("POST", "/v1/chat/completions", site.user("x" * 2000, n=3, stream=True)) as sock:
            assert sock.recv(100)
        site.wait_for(lambda: all(handle.cancelled for handle in handles))
        site.wait_for(lambda: not site.engine.active)
    assert len(handles) == 3


def test_logprobs(client):
    text = "Tō t<"
    asked = {"messages": says(text), "logprobs": True, "top_logprobs": 3, **CHAT}
    found = client.chat.completions.create(**asked).choices[0].logprobs
    assert found.refusal is None
    assert b"".join(bytes(token.bytes) for token in found.content).decode() == text
    assert [token.token for token in found.content] == ["T", "\ufffd", "\ufffd", " t", "<"]
    for token in found.content:
        assert token.logprob == pytest.approx(0, abs=1e-6)
        assert [len(token.top_logprobs), token.top_logprobs[0].token] == [3, token.token]
        assert token.top_logprobs[1].logprob == pytest.approx(-50, abs=1e-3)
    chunks = list(client.chat.completions.create(stream=True, **asked))
    streamed = [c.choices[0] for c in chunks if c.choices[0].delta.content]
    for choice in streamed:  # exactly the tokens of the chunk
        assert b"".join(bytes(t.bytes) for t in choice.logprobs.content).decode() == choice.delta.content
    assert [t for choice in streamed for t in choice.logprobs.content] == found.content
    assert all(c.choices[0].logprobs is None for c in chunks if not c.choices[0].delta.content)


def test_logprobs_without_alternatives(client):
    found = client.chat.completions.create(messages=says("ab"), logprobs=True, **CHAT).choices[0].logprobs
    assert [(token.token, token.top_logprobs) for token in found.content] == [("a", []), ("b", [])]


def test_logprobs_are_of_the_content(client):
    for text, content in (
        ("<think>\nwhy\n</think>\n\nso it is", "so it is"),
        ("<think>so</think>so", "so"),
        ("so", "so"),
        ("", ""),
    ):
        message = client.chat.completions.create(messages=says(text), logprobs=True, **CHAT).choices[0]
        assert message.message.content == content
        assert "".join(token.token for token in message.logprobs.content) == content


def test_logprobs_of_an_answer_that_a_stop_text_cuts(client):
    found = client.chat.completions.create(messages=says("abcdef"), logprobs=True, stop="cd", **CHAT).choices[0]
    assert found.message.content == "ab"
    assert "".join(token.token for token in found.logprobs.content) == "ab"


def test_parse_helper(client):
    answer = client.chat.completions.parse(messages=says("plain"), **CHAT)
    assert (answer.choices[0].message.content, answer.choices[0].message.parsed) == ("plain", None)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(messages=says("plain"), max_tokens=2, **CHAT)


def test_fields_of_the_sampler(client, seen):
    more = {"typical_p": 0.5, "min_p": 0.1, "top_k": 5, "repetition_penalty": 1.5}
    client.chat.completions.create(messages=says("a"), extra_body=more, **CHAT)
    (request,) = seen
    assert {name: getattr(request.sampling, name) for name in more} == more


def test_prefixes_are_never_shared_by_default_but_within_one_tenant(client, seen):
    for more in ({}, {"cache_salt": "s"}, {"cache_salt": ""}):
        client.chat.completions.create(messages=says("a"), extra_body=more, **CHAT)
    client.chat.completions.create(messages=says("a"), **CHAT)
    scopes = [request.scope for request in seen]
    assert all(scopes)
    assert len(set(scopes)) == 3
    assert scopes[0] == scopes[3]


def test_scopes_tell_everything_apart():
    base = {"tenant": "t", "model_id": "m", "salt": None, "images": ""}
    others = [{"tenant": "u"}, {"model_id": "n"}, {"salt": ""}, {"salt": "x"}, {"images": "i"}]
    assert len({cache_scope(**base), *(cache_scope(**base | other) for other in others)}) == 6
    moved = cache_scope(tenant="tm", model_id="", salt=None), cache_scope(tenant="t", model_id="m", salt=None)
    assert len(set(moved)) == 2


def test_timing(site):
    body = site.json("POST", "/v1/chat/completions", site.user("abc"))[2]
    assert set(body["x_hf2q_timing"]) == {
        "queue_time_secs",
        "prefill_time_secs",
        "decode_time_secs",
        "total_time_secs",
        "time_to_first_token_ms",
        "prefill_tokens_per_sec",
        "decode_tokens_per_sec",
    }


def test_tokens_of_a_stream_are_those_of_the_tokenizer(client):
    tokenizer = scripted_tokenizer()
    found = client.chat.completions.create(messages=says(" t é"), logprobs=True, **CHAT).choices[0].logprobs
    assert [list(t.bytes) for t in found.content] == [list(tokenizer.token_bytes(t)) for t in tokenizer.encode(" t é")]


def test_an_error_in_one_choice_ends_all(running):
    calls = []

    def broken(rows, tokens):
        calls.append(tokens)
        if len(calls) > 150:  # in the middle of both
            raise RuntimeError("device lost")

    with running(before=broken) as site:
        body = site.raw("POST", "/v1/chat/completions", site.user("x" * 400, n=2, stream=True))
        assert body.count(b'"error"') == 1
        assert b"[DONE]" not in body
        assert json.loads(body[body.index(b'data: {"error"') + 6 :].split(b"\n")[0])["error"]["type"] == "server_error"
