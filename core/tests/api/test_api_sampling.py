"""How a request is sampled: its own fields, else what the model file recommends, else temperature 1."""

import os
from pathlib import Path

import pytest

from hf2q.serve.api.lease import model_defaults
from hf2q.serve.api.registered import named_after
from hf2q.serve.sampling import SamplingParams
from hf2q.types import ChatFormat

CHAT = "/v1/chat/completions"
RECOMMENDED = {
    "general.sampling.temp": 0.7,
    "general.sampling.top_k": 20,
    "general.sampling.top_p": 0.8,
    "general.sampling.min_p": 0.1,
    "general.sampling.penalty_repeat": 1.5,
}


@pytest.fixture
def seen(site, monkeypatch):
    """The requests that reach the engine."""
    found = []
    submit = site.engine.submit
    monkeypatch.setattr(site.engine, "submit", lambda request: found.append(request) or submit(request))
    return found


def test_what_the_request_says(site, seen):
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.25,
        "seed": -3,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "repetition_penalty": 1.25,
    }
    asked = site.user("hi", **fields, logit_bias={"5": -100, "300": 2}, stop=["x", "y"], max_tokens=9)
    headers = ["x-request-id: mine"]
    assert site.json("POST", CHAT, asked | {"logit_bias": {"5": -100, "7": 2}}, headers)[0] == 200
    (request,) = seen
    assert request.sampling == SamplingParams(**fields, logit_bias={5: -100, 7: 2})
    assert (request.stop, request.max_tokens, request.id) == (("x", "y"), 9, "mine")
    assert request.skip_special  # the markers of this model's reasoning are ordinary tokens


def test_nothing_said(site, seen):
    site.json("POST", CHAT, site.user("hi"))
    assert seen[0].sampling == SamplingParams(temperature=1.0)
    assert seen[0].max_tokens is None


def test_what_the_model_recommends(running):
    with running(metadata=RECOMMENDED) as site:
        recommended = SamplingParams(temperature=0.7, top_k=20, top_p=0.8, min_p=0.1, repetition_penalty=1.5)
        lease = site.service.lease("scripted")
        assert lease.sampling({}) == recommended
        assert lease.sampling({"temperature": 0}).greedy
        assert lease.sampling({"top_p": 1}) == SamplingParams(
            temperature=0.7, top_k=20, top_p=1, min_p=0.1, repetition_penalty=1.5
        )
        lease.close()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.sampling.temp", -1.0),
        ("general.sampling.temp", float("nan")),
        ("general.sampling.temp", "hot"),
        ("general.sampling.top_k", -5),
        ("general.sampling.top_p", 3.0),
        ("general.sampling.penalty_repeat", 0.0),
    ],
)
def test_recommendations_that_make_no_sense_are_left_out(caplog, key, value):
    found = model_defaults(RECOMMENDED | {key: value})
    assert len(found) == len(RECOMMENDED) - 1
    assert key in caplog.text


def test_recommendations_that_are_not_available_are_named(caplog):
    assert len(model_defaults(RECOMMENDED | {"general.sampling.mirostat": 2})) == len(RECOMMENDED)
    assert "general.sampling.mirostat" in caplog.text
    assert "general.sampling.temp" not in caplog.text


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("m-Q4_K_M.gguf", "m-Q4_K_M"),
        ("odd name%2F.gguf", "odd name%2F"),
        ("m.bin", "m.bin"),
        (".gguf", ".gguf"),
        (os.fsdecode(b"\xff.gguf"), "?"),  # not text, and so in no JSON
    ],
)
def test_a_model_is_served_under_the_name_of_its_file(name, served):
    assert named_after(Path("dir") / name) == served


def test_markers_that_are_control_tokens_are_not_skipped(running, monkeypatch):
    def change(model):
        model.chat_format = ChatFormat(name="odd", reasoning=("<|endoftext|>", "</think>"), end_of_turn=("<|im_end|>",))

    with running("so", change=change) as site:
        found = []
        submit = site.engine.submit
        monkeypatch.setattr(site.engine, "submit", lambda request: found.append(request) or submit(request))
        site.json("POST", CHAT, site.user("hi"))
        assert not found[0].skip_special
