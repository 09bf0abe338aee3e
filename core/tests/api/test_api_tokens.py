"""``/tokenize``, ``/detokenize`` and ``/apply-template``, in the shapes of llama.cpp's server."""

import pytest

from hf2q.testing.scripted import scripted_tokenizer

TOKENIZER = scripted_tokenizer()
OK = {"messages": [{"role": "user", "content": "hi"}]}


def test_tokenize(site):
    assert site.json("POST", "/tokenize", {"content": "a é"})[::2] == (200, {"tokens": [97, 32, 0xC3, 0xA9]})
    named = {"content": "a", "model": "scripted"}
    assert site.json("POST", "/tokenize", named)[2] == {"tokens": [97]}
    assert site.json("POST", "/tokenize", {"content": ""})[2] == {"tokens": []}


def test_marks(site):
    (mark,) = TOKENIZER.encode("<|im_start|>")
    assert site.json("POST", "/tokenize", {"content": "<|im_start|>"})[2] == {"tokens": [mark]}
    plain = site.json("POST", "/tokenize", {"content": "<|im_start|>", "parse_special": False})[2]["tokens"]
    assert plain == list(b"<|im_start|>")


def test_special_tokens_around(running):
    bos = TOKENIZER.encode("<|im_start|>")[0]

    def change(model):
        model.tokenizer.bos_id, model.tokenizer.add_bos = bos, True

    with running(change=change) as site:
        assert site.json("POST", "/tokenize", {"content": "a"})[2] == {"tokens": [97]}
        assert site.json("POST", "/tokenize", {"content": "a", "add_special": True})[2] == {"tokens": [bos, 97]}


def test_pieces(site):
    found = site.json("POST", "/tokenize", {"content": " té", "with_pieces": True})[2]["tokens"]
    assert found == [
        {"id": TOKENIZER.encode(" t")[0], "piece": " t"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
    ]


def test_detokenize(site):
    ids = TOKENIZER.encode("<|im_start|>é t")
    assert site.json("POST", "/detokenize", {"tokens": ids})[2] == {"content": "<|im_start|>é t"}
    assert site.json("POST", "/detokenize", {"tokens": [0xC3]})[2] == {"content": "\ufffd"}
    assert site.json("POST", "/detokenize", {"tokens": []})[2] == {"content": ""}


def test_template(site):
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert site.json("POST", "/apply-template", OK)[2] == {"prompt": prompt}
    thinking = OK | {"chat_template_kwargs": {"enable_thinking": True}}
    assert site.json("POST", "/apply-template", thinking)[2] == {"prompt": prompt + "<think>\n"}
    assert site.json("POST", "/tokenize", OK)[2] == {"tokens": TOKENIZER.encode(prompt)}


IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
BAD = [
    ("/tokenize", {}, "content", "missing_required_parameter"),
    ("/tokenize", {"content": None}, "content", "missing_required_parameter"),
    ("/tokenize", {"content": "a", **OK}, "content", "missing_required_parameter"),
    ("/tokenize", {"content": 5}, "content", "invalid_value"),
    ("/tokenize", {"content": ["a"]}, "content", "invalid_value"),
    ("/tokenize", {"content": "a", "add_special": "yes"}, "add_special", "invalid_value"),
    ("/tokenize", {"content": "a", "with_pieces": 1}, "with_pieces", "invalid_value"),
    ("/tokenize", {"content": "a", "chat_template_kwargs": {"x": 1}}, "content", "invalid_value"),
    ("/tokenize", {"add_special": True, **OK}, "add_special", "invalid_value"),
    ("/tokenize", {"parse_special": False, **OK}, "parse_special", "invalid_value"),
    ("/tokenize", {"contents": "a"}, "contents", "unknown_parameter"),
    ("/tokenize", {"content": "a", "model": 5}, "model", "invalid_value"),
    ("/tokenize", {"messages": []}, "messages", "invalid_value"),
    ("/detokenize", {}, "tokens", "missing_required_parameter"),
    ("/detokenize", {"tokens": "ab"}, "tokens", "invalid_value"),
    ("/detokenize", {"tokens": ["a"]}, "tokens[0]", "invalid_value"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]", "invalid_value"),
    ("/detokenize", {"tokens": [True]}, "tokens[0]", "invalid_value"),
    ("/detokenize", {"tokens": [99999]}, "tokens", "invalid_value"),
    ("/detokenize", {"tokens": [1], "content": "a"}, "content", "unknown_parameter"),
    ("/apply-template", {}, "messages", "missing_required_parameter"),
    ("/apply-template", {"messages": "hi"}, "messages", "invalid_value"),
    ("/apply-template", {"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    (
        "/apply-template",
        {"messages": [{"role": "user", "content": IMAGE}]},
        "messages[0].content[0].image_url.url",
        "unsupported_value",
    ),
    ("/apply-template", {**OK, "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs.x", None),
    ("/apply-template", {**OK, "temperature": 1}, "temperature", "unknown_parameter"),
    ("/apply-template", {**OK, "reasoning_effort": "lots"}, "reasoning_effort", "invalid_value"),
]


@pytest.mark.parametrize(("path", "body", "param", "code"), BAD)
def test_bad_requests(site, path, body, param, code):
    before = site.steps
    status, headers, found = site.json("POST", path, body)
    error = found["error"]
    assert (status, headers["content-type"]) == (400, "application/json")
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code), error
    assert site.steps == before


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/apply-template", "/v1/completions", "/v1/embeddings"])
def test_rules_of_bodies_hold_everywhere(site, path):
    status, _, body = site.json("POST", path, b"{", ["content-type: application/json"])
    assert (status, body["error"]["code"]) == (400, "invalid_json")
    assert site.json("POST", path, b"{}", ["content-type: text/plain"])[0] == 415
    assert site.json("POST", path, {"model": "scripted", "\ud800": 1})[0] == 400
    assert site.json("GET", path)[0] == 405


def test_several_models_need_a_name(running):
    from test_api_embeddings import embedding_model

    with running(beside=[embedding_model()]) as site:
        status, _, body = site.json("POST", "/tokenize", {"content": "a"})
        assert (status, body["error"]["param"]) == (400, "model")
