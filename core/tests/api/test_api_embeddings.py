"""``/v1/embeddings`` with the official client, over an encoder of a few lines."""

import base64
import functools
import threading
import time

import numpy as np
import openai
import pytest

from hf2q.backends.reference import ReferenceOps
from hf2q.serve.api.compute import WAITING
from hf2q.serve.api.embeddings import GROUP
from hf2q.serve.model import Model
from hf2q.testing.scripted import ScriptedHParams, scripted_tokenizer

PATH = "/v1/embeddings"
CONTEXT = 64
WIDTH = 3
TOKENIZER = scripted_tokenizer()


class ToyEncoder:
    """A token's state is (id, position, sum of the text's ids). `hold` is waited for, if set."""

    n_vocab = TOKENIZER.n_vocab

    def __init__(self):
        self.calls = []
        self.hold = None

    def hidden(self, ids, lengths):
        self.calls.append(tuple(lengths))
        if self.hold is not None:
            self.hold(timeout=20)
        states = np.full((*ids.shape, WIDTH), 1e6, np.float32)
        for row, length in enumerate(lengths):
            text = ids[row, :length]
            states[row, :length] = np.stack([text, np.arange(length), np.full(length, text.sum())], -1)
        return states


def embedding_model():
    return Model(
        path="toy.gguf",
        arch="toy",
        hparams=ScriptedHParams(n_vocab=TOKENIZER.n_vocab),
        metadata={"toy.pooling_type": 1, "toy.embedding_length": WIDTH},
        tokenizer=TOKENIZER,
        context_length=CONTEXT,
        graph=ToyEncoder(),
        task="embed",
        ops=ReferenceOps(threads=1),
    )


def wanted(text):
    """Mean of the states, of length 1."""
    ids = np.array(TOKENIZER.encode(text), np.float64)
    mean = np.stack([ids, np.arange(len(ids)), np.full(len(ids), ids.sum())], -1).mean(0)
    return mean / np.linalg.norm(mean)


@pytest.fixture(scope="module")
def encoder():
    return embedding_model()


@pytest.fixture(scope="module")
def server(running, encoder):
    with running(beside=[encoder]) as found:
        yield found


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0, timeout=30) as found:
        yield found


MODEL = "beside-0"
TEXTS = ["abc", "a text that is longer", "é", "abc"]


def test_the_clients_default(client):
    answer = client.embeddings.create(model=MODEL, input=TEXTS)  # it asks for base64, and gives lists of numbers
    assert (answer.object, answer.model) == ("list", MODEL)
    assert [one.index for one in answer.data] == [0, 1, 2, 3]
    for text, one in zip(TEXTS, answer.data, strict=True):
        assert one.object == "embedding"
        np.testing.assert_allclose(one.embedding, wanted(text), rtol=1e-6)
    tokens = sum(len(TOKENIZER.encode(text)) for text in TEXTS)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)


def test_formats(server):
    asked = {"model": MODEL, "input": "abc"}
    for fields in ({}, {"encoding_format": "float"}, {"encoding_format": None}):
        found = server.json("POST", PATH, asked | fields)[2]["data"][0]["embedding"]
        np.testing.assert_allclose(found, wanted("abc"), rtol=1e-6)
    found = server.json("POST", PATH, asked | {"encoding_format": "base64"})[2]["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(found), "<f4"), np.float32(wanted("abc")))


def test_tokens(client):
    for given in (list(b"abc"), [list(b"abc")], ["abc"], "abc"):
        (one,) = client.embeddings.create(model=MODEL, input=given).data
        np.testing.assert_allclose(one.embedding, wanted("abc"), rtol=1e-6)


def test_neighbours_change_nothing(client):
    alone = client.embeddings.create(model=MODEL, input="abc").data[0].embedding
    many = client.embeddings.create(model=MODEL, input=[*["x" * n for n in range(1, 50)], "abc"]).data
    assert len(many) == 50
    assert many[-1].embedding == alone


def test_dimensions(client):
    assert len(client.embeddings.create(model=MODEL, input="a", dimensions=WIDTH).data[0].embedding) == WIDTH


BAD = [
    ({"model": ...}, "model", "missing_required_parameter"),
    ({"input": ...}, "input", "missing_required_parameter"),
    ({"input": None}, "input", "invalid_value"),
    ({"input": ""}, "input", "invalid_value"),
    ({"input": []}, "input", "invalid_value"),
    ({"input": 5}, "input", "invalid_value"),
    ({"input": {}}, "input", "invalid_value"),
    ({"input": ["a", ""]}, "input[1]", "invalid_value"),
    ({"input": ["a", 5]}, "input[1]", "invalid_value"),
    ({"input": [5, "a"]}, "input[0]", "invalid_value"),
    ({"input": [[]]}, "input[0]", "invalid_value"),
    ({"input": [[1], [True]]}, "input[1]", "invalid_value"),
    ({"input": [1.5]}, "input[0]", "invalid_value"),
    ({"input": [-1]}, "input[0]", "invalid_value"),
    ({"input": [99999]}, "input", None),
    ({"input": ["a", "x" * 65]}, "input[1]", "context_length_exceeded"),
    ({"input": "x" * 65}, "input", "context_length_exceeded"),
    ({"input": [[1] * 65]}, "input", "context_length_exceeded"),
    ({"input": ["a"] * 2049}, "input", "invalid_value"),
    ({"encoding_format": "hex"}, "encoding_format", "invalid_value"),
    ({"dimensions": 2}, "dimensions", "invalid_value"),
    ({"dimensions": 0}, "dimensions", "invalid_value"),
    ({"dimensions": "3"}, "dimensions", "invalid_value"),
    ({"user": 5}, "user", "invalid_value"),
    ({"truncate": True}, "truncate", "unknown_parameter"),
    ({"inputs": "a"}, "inputs", "unknown_parameter"),
    ({"model": "scripted"}, "model", "model_not_supported"),
]


def test_bad_requests(server, encoder):
    calls = len(encoder._graph.calls)
    for fields, param, code in BAD:
        asked = {"model": MODEL, "input": "a"} | fields
        body = {name: value for name, value in asked.items() if value is not ...}
        status, headers, found = server.json("POST", PATH, body)
        error = found["error"]
        assert (status, headers["content-type"]) == (400, "application/json"), fields
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code), (fields, error)
    assert len(encoder._graph.calls) == calls
    status, _, body = server.json("POST", PATH, {"model": "other", "input": "a"})
    assert (status, body["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/apply-template", {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_an_embedding_model_generates_nothing(server, path, fields):
    status, _, body = server.json("POST", path, {"model": MODEL} | fields)
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "model", "model_not_supported")


def test_its_row(client):
    row = client.models.retrieve(MODEL)
    assert (row.task, row.pooling, row.hidden_size, row.context_length) == ("embed", "mean", WIDTH, CONTEXT)
    assert [model.id for model in client.models.list()] == ["scripted", MODEL]


def test_its_tokenizer(server):
    assert server.json("POST", "/tokenize", {"model": MODEL, "content": "ab"})[2] == {"tokens": [97, 98]}


def test_too_many_wait(running):
    encoder = embedding_model()
    opened = threading.Event()
    encoder._graph.hold = opened.wait
    body = {"model": MODEL, "input": "a"}
    with running(beside=[encoder]) as site:
        waiting = []
        try:
            for _ in range(WAITING + 1):
                waiting.append(site.connect("POST", PATH, body, ["connection: close"]))
            compute = site.compute
            site.wait_for(lambda: sum(lane.here for lane in compute._lanes.values()) == WAITING + 1)
            status, headers, found = site.json("POST", PATH, body)
            assert (status, headers["retry-after"], found["error"]["code"]) == (429, "1", "queue_full")
            waiting.pop().close()  # the last of them gives up
            site.wait_for(lambda: sum(lane.here for lane in compute._lanes.values()) == WAITING)
            opened.set()
            for sock in waiting:
                assert b'"embedding"' in b"".join(iter(functools.partial(sock.recv, 65536), b""))
        finally:
            opened.set()
            for sock in waiting:
                sock.close()
        assert len(encoder._graph.calls) == WAITING  # nothing was done for the one who left


def test_a_client_that_leaves_ends_its_work(running):
    encoder = embedding_model()
    gate = threading.Semaphore(0)
    encoder._graph.hold = gate.acquire
    with running(beside=[encoder]) as site:
        with site.connect("POST", PATH, {"model": MODEL, "input": ["a"] * 2000}):
            site.wait_for(lambda: encoder._graph.calls)
        member = site.service.member(MODEL)
        assert member.leases == 1  # its thread still uses the model
        while member.leases:  # one call after the other, slowly
            gate.release()
            time.sleep(0.01)
        assert len(encoder._graph.calls) < 2000 // GROUP
