"""``/v1/completions``: texts and tokens continued, with the official client."""

import json

import openai
import pytest

from hf2q.serve.api.completions_request import MAX_TOKENS
from hf2q.serve.api.settings import ApiSettings
from hf2q.testing.scripted import scripted_tokenizer

TOKENIZER = scripted_tokenizer()
PATH = "/v1/completions"
END = TOKENIZER.eos_id


def ahead(ids):
    """The alphabet goes on, up to z; after anything else comes ``é`` in two tokens, and the end."""
    last = ids[-1]
    if ord("a") <= last < ord("z"):
        return last + 1
    return {0xC3: 0xA9, 0xA9: END, ord("z"): END}.get(last, 0xC3)


@pytest.fixture(scope="module")
def server(running):
    with running(script=ahead) as found:
        yield found


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0, timeout=30) as found:
        yield found


ASKED = {"model": "scripted", "temperature": 0}


def test_unary(client):
    answer = client.completions.create(prompt="xw", **ASKED)
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.model) == ("text_completion", "scripted")
    (choice,) = answer.choices
    assert (choice.text, choice.index, choice.finish_reason, choice.logprobs) == ("xyz", 0, "stop", None)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 4)
    assert client.completions.create(prompt=list(b"w"), **ASKED).choices[0].text == "xyz"
    assert client.completions.create(prompt="!", **ASKED).choices[0].text == "é"


def test_limit(client):
    answer = client.completions.create(prompt="a", **ASKED)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (MAX_TOKENS, "length")
    assert client.completions.create(prompt="a", max_tokens=2, **ASKED).choices[0].text == "bc"
    assert client.completions.create(prompt="a", stop=["d"], **ASKED).choices[0].text == "bc"


@pytest.mark.parametrize("prompt", [["v", "x"], [list(b"v"), list(b"x")]])
def test_prompts_times_choices(client, prompt):
    answer = client.completions.create(prompt=prompt, n=2, best_of=2, **ASKED)
    assert [(c.index, c.text) for c in answer.choices] == [(0, "wxyz"), (1, "wxyz"), (2, "yz"), (3, "yz")]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 2 * 5 + 2 * 3)
    options = {"include_usage": True}
    chunks = list(client.completions.create(prompt=prompt, n=2, stream=True, stream_options=options, **ASKED))
    for index, choice in enumerate(answer.choices):
        own = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == index]
        assert "".join(one.text for one in own) == choice.text
        assert [one.finish_reason for one in own if one.finish_reason] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert {c.object for c in chunks} == {"text_completion"}


def test_echo(client):
    answer = client.completions.create(prompt=["xy", "!"], echo=True, **ASKED)
    assert [choice.text for choice in answer.choices] == ["xyz", "!é"]
    assert client.completions.create(prompt=list(b"xy"), echo=True, **ASKED).choices[0].text == "xyz"
    chunks = list(client.completions.create(prompt="xy", echo=True, stream=True, **ASKED))
    assert [c.choices[0].text for c in chunks[:2]] == ["xy", "z"]
    empty = client.completions.create(prompt="xy", echo=True, max_tokens=0, **ASKED)
    assert (empty.choices[0].text, empty.choices[0].finish_reason) == ("xy", "length")
    assert (empty.usage.prompt_tokens, empty.usage.completion_tokens) == (2, 0)


def test_logprobs(client):
    found = client.completions.create(prompt="!", logprobs=2, **ASKED).choices[0].logprobs
    assert found.tokens == ["bytes:\\xc3", "bytes:\\xa9"]
    assert found.text_offset == [0, 0]
    assert found.token_logprobs == pytest.approx([0, 0], abs=1e-6)
    assert [len(top) for top in found.top_logprobs] == [2, 2]
    assert next(iter(found.top_logprobs[0])) == "bytes:\\xc3"
    none = client.completions.create(prompt="w", logprobs=0, **ASKED).choices[0].logprobs
    assert (none.tokens, none.text_offset) == (["x", "y", "z"], [0, 1, 2])
    assert [list(top) for top in none.top_logprobs] == [["x"], ["y"], ["z"]]  # the token itself, at least


def test_logprobs_of_the_prompt(client, server):
    found = client.completions.create(prompt="wx?", echo=True, max_tokens=1, logprobs=1, **ASKED).choices[0].logprobs
    assert found.tokens == ["w", "x", "?", "bytes:\\xc3"]
    assert found.text_offset == [0, 1, 2, 3]
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    assert found.token_logprobs[1] == pytest.approx(0, abs=1e-6)
    assert found.token_logprobs[2] == pytest.approx(-50, abs=1e-3)
    assert list(found.top_logprobs[2]) == ["y", "?"]
    only = client.completions.create(prompt="wx", echo=True, max_tokens=0, logprobs=0, **ASKED).choices[0].logprobs
    assert only.tokens == ["w", "x"]
    long = {"prompt": "w" * 200, "echo": True, "logprobs": 0, "max_tokens": 0}
    assert len(client.completions.create(**long, **ASKED).choices[0].logprobs.tokens) == 200


def test_a_token_before_the_text_is_read_and_not_listed(running):
    bos = TOKENIZER.encode("<|im_start|>")[0]

    def change(model):
        model.tokenizer.bos_id, model.tokenizer.add_bos = bos, True

    asked = {"model": "scripted", "prompt": "wx", "echo": True, "max_tokens": 0, "logprobs": 0}
    with running(script=lambda ids: ord("w") if ids[-1] == bos else ahead(ids), change=change) as site:
        (choice,) = site.json("POST", PATH, asked)[2]["choices"]
        (given,) = site.json("POST", PATH, {**asked, "prompt": [bos, *b"wx"]})[2]["choices"]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("wx", ["w", "x"])
    assert choice["logprobs"]["text_offset"] == [0, 1]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx([0, 0], abs=1e-6)
    # given as a token, it is part of the text
    assert "".join(given["logprobs"]["tokens"]) == given["text"] == "<|im_start|>wx"
    assert given["logprobs"]["token_logprobs"][0] is None


def test_logprobs_of_a_stream(client):
    asked = {"prompt": "v!", "logprobs": 1, "echo": True, **ASKED}
    whole = client.completions.create(**asked).choices[0]
    chunks = list(client.completions.create(stream=True, **asked))
    parts = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs is not None]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [one for part in parts for one in getattr(part, name)] == getattr(whole.logprobs, name)
    assert "".join(c.choices[0].text for c in chunks) == whole.text


def test_text_of_marks_is_read_as_marks(client):
    answer = client.completions.create(prompt="<|im_start|>", **ASKED)
    assert answer.usage.prompt_tokens == 1


def test_stream_ends_and_framing(server):
    response = server.raw("POST", PATH, {"model": "scripted", "prompt": "y", "stream": True})
    assert b"text/event-stream" in response
    assert response.count(b"data: [DONE]") == 1
    frames = [line for line in response.split(b"\r\n") if line.startswith(b"data: {")]
    assert json.loads(frames[-1].split(b"\n")[0][6:])["choices"][0]["finish_reason"] == "stop"


BAD = [
    ({"prompt": None}, "prompt", "invalid_value"),
    ({"prompt": ...}, "prompt", "missing_required_parameter"),
    ({"prompt": ""}, "prompt", "invalid_value"),
    ({"prompt": []}, "prompt", "invalid_value"),
    ({"prompt": 5}, "prompt", "invalid_value"),
    ({"prompt": {}}, "prompt", "invalid_value"),
    ({"prompt": [5, "a"]}, "prompt[0]", "invalid_value"),
    ({"prompt": ["a", 5]}, "prompt[1]", "invalid_value"),
    ({"prompt": ["a", [5]]}, "prompt[1]", "invalid_value"),
    ({"prompt": [[]]}, "prompt[0]", "invalid_value"),
    ({"prompt": [-1]}, "prompt[0]", "invalid_value"),
    ({"prompt": [True]}, "prompt[0]", "invalid_value"),
    ({"prompt": [1.5]}, "prompt[0]", "invalid_value"),
    ({"prompt": [99999]}, "prompt", None),
    ({"prompt": [[1], [99999]]}, "prompt", None),
    ({"prompt": "x" * 5000}, "prompt", "context_length_exceeded"),
    ({"prompt": "x" * 4096}, "prompt", "context_length_exceeded"),
    ({"prompt": "x" * 4097, "max_tokens": 0, "echo": True}, "prompt", "context_length_exceeded"),
    ({"model": ...}, "model", "missing_required_parameter"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    ({"max_tokens": "5"}, "max_tokens", "invalid_value"),
    ({"max_completion_tokens": 5}, "max_completion_tokens", "unknown_parameter"),
    ({"messages": []}, "messages", "unknown_parameter"),
    ({"logprobs": 6}, "logprobs", "invalid_value"),
    ({"logprobs": True}, "logprobs", "invalid_value"),
    ({"logprobs": -1}, "logprobs", "invalid_value"),
    ({"top_logprobs": 1}, "top_logprobs", "unknown_parameter"),
    ({"echo": 1}, "echo", "invalid_value"),
    ({"suffix": "x"}, "suffix", "unsupported_parameter"),
    ({"best_of": 2}, "best_of", "unsupported_parameter"),
    ({"best_of": 0}, "best_of", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 64}, "n", "invalid_value"),
    ({"prompt": ["a"] * 40}, "n", "invalid_value"),
    ({"prompt": ["a"] * 20, "n": 2}, "n", "invalid_value"),
    ({"stop": [""]}, "stop[0]", "invalid_value"),
    ({"stop": list("abcde")}, "stop", "invalid_value"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ({"stream": "yes"}, "stream", "invalid_value"),
    ({"stream_options": {"include_usage": True}}, "stream_options", None),
    ({"user": 5}, "user", "invalid_value"),
    ({"tools": []}, "tools", "unknown_parameter"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(server, stream):
    before = server.steps
    for fields, param, code in BAD:
        asked = {"model": "scripted", "prompt": "a", "stream": stream} | fields
        if stream and param == "stream_options":
            continue
        body = {name: value for name, value in asked.items() if value is not ...}
        status, headers, found = server.json("POST", PATH, body)
        error = found["error"]
        assert (status, headers["content-type"]) == (400, "application/json"), fields
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code), (fields, error)
    assert server.steps == before


def test_unknown_model(server):
    status, _, body = server.json("POST", PATH, {"model": "other", "prompt": "a"})
    assert (status, body["error"]["code"]) == (404, "model_not_found")


def test_echo_with_logprobs_has_a_limit(running):
    with running(script=ahead, settings=ApiSettings(max_echo=3)) as site:
        asked = {"model": "scripted", "prompt": "wxyz", "echo": True, "max_tokens": 0}
        assert site.json("POST", PATH, asked)[0] == 200
        status, _, body = site.json("POST", PATH, asked | {"logprobs": 0})
        assert (status, body["error"]["param"]) == (400, "echo")


def test_a_client_that_leaves_ends_all(running, monkeypatch):
    handles = []
    with running(script=lambda ids: 97) as site:
        submit = site.engine.submit
        monkeypatch.setattr(site.engine, "submit", lambda request: handles.append(submit(request)) or handles[-1])
        body = {"model": "scripted", "prompt": ["a", "b"], "max_tokens": 3000, "stream": True}
        with site.connect("POST", PATH, body) as sock:
            assert sock.recv(100)
        site.wait_for(lambda: all(handle.cancelled for handle in handles) and not site.engine.active)
    assert len(handles) == 2
