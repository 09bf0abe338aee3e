"""The self-test: all of it against a good server, and each of its checks against one that breaks that promise."""

import inspect
import json
import re
import subprocess
import sys

import pytest

from hf2q.serve.api.auth import digest
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.selftest import as_json, passed, run, table, together
from hf2q.serve.selftest.asks import Asks
from hf2q.serve.selftest.check import Failed, Verdict
from hf2q.serve.selftest.client import Client
from hf2q.serve.selftest.fold import fold
from hf2q.serve.selftest.run import CHAT_CHECKS

ANSWER = "The sea was calm, and the sand was warm."


def reply(conversation):
    """What the questions of the self-test call for."""
    said = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", conversation, re.DOTALL)[-1]
    if said == "Name a city.":
        return '{"city":"Rome","large":true,"kinds":["old"]}'
    if "JSON object" in said:
        return '{"a":1}'
    if said.startswith("Count from"):
        return '{"bits":[' + "true," * 3000
    return ANSWER


def verdict(site, name):
    """Of one check."""
    (check,) = (each for each in CHAT_CHECKS if each.name == name)
    return check.run(Asks(Client(site.base, timeout=30), "scripted"))


def test_a_good_server_passes(running):
    told = []
    with running(reply) as site:
        verdicts = run(site.base, "scripted", on_verdict=told.append)
    assert [each for each in verdicts if each.result == "FAIL"] == []
    assert told == verdicts
    assert passed(verdicts)
    # a scripted model has no tools, and neither embeds
    skipped = {each.name for each in verdicts if each.result == "SKIP"}
    assert {name for name in skipped if "tool" in name} == {
        "tool_choice required calls a tool",
        "a chosen tool is the one called",
        "tool_choice auto, streamed as unary",
    }
    assert len(skipped) <= 6, skipped


def test_a_server_with_a_key(running):
    with running(reply, settings=ApiSettings(keys=(digest("k"),))) as site:
        asks = Asks(Client(site.base, key="k"), "scripted")
        assert [check.run(asks).result for check in CHAT_CHECKS[:8]] == ["PASS"] * 8
        assert verdict(site, "models are listed").result == "FAIL"


def test_a_server_that_is_not_there(running):
    with running() as site:
        pass
    found = verdict(site, "models are listed")
    assert (found.result, found.reason.partition(":")[0]) == ("FAIL", "the connection failed")


class Broken:
    """An application that spoils what another one sends."""

    def __init__(self, app, spoil):
        self.app, self.spoil = app, spoil

    async def __call__(self, scope, receive, send):
        parts = []
        if scope["path"] not in getattr(self.spoil, "paths", (scope["path"],)):
            await self.app(scope, receive, send)
            return

        async def collect(message):
            if message["type"] == "http.response.start" or message.get("more_body"):
                parts.append(message)
            else:
                start, *bodies = [*parts, message]
                body = b"".join(each.get("body", b"") for each in bodies).decode()
                status, text = self.spoil(scope["method"], scope["path"], start["status"], body)
                headers = [each for each in start["headers"] if each[0].lower() != b"content-length"]
                headers.append((b"content-length", str(len(text.encode())).encode()))
                await send({**start, "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": text.encode()})

        await self.app(scope, receive, collect)


def swap(old, new, count=-1):
    """Spoils bodies of status 200 by a replacement."""
    return lambda method, path, status, body: (status, body.replace(old, new, count) if status == 200 else body)


def drop_frame(word):
    """Leaves frames out that hold a word."""

    def spoil(method, path, status, body):
        if not body.startswith("data: "):
            return status, body
        return status, "".join(f + "\n\n" for f in body.split("\n\n") if f and word not in f)

    return spoil


def number(name, change):
    """Changes a number of a response that is no stream."""

    def spoil(method, path, status, body):
        if body.startswith("data: "):
            return status, body
        return status, re.sub(rf'"{name}":(\d+)', lambda m: f'"{name}":{change(int(m[1]))}', body)

    return spoil


class Alternating:
    """Spoils every second answer."""

    def __init__(self, old, new):
        self.old, self.new, self.asked = old, new, 0

    def __call__(self, method, path, status, body):
        self.asked += method == "POST"
        return status, body.replace(self.old, self.new) if self.asked % 2 == 0 else body


class AfterThat:
    """Spoils answers from the fifth on."""

    def __init__(self, old, new):
        self.old, self.new, self.asked = old, new, 0

    def __call__(self, method, path, status, body):
        self.asked += 1
        return status, body.replace(self.old, self.new) if self.asked > 4 else body


def no_cancels(method, path, status, body):
    """Never tells of one."""
    return status, re.sub(r'"cancelled":\d+', '"cancelled":0', body)


no_cancels.paths = ("/hf2q/v1/status",)


def accept(method, path, status, body):
    """Says yes to everything."""
    return 200, body


def fail(method, path, status, body):
    """Has errors of its own instead of refusals."""
    return (500 if status >= 400 else status), body


def unnamed(method, path, status, body):
    """Does not say which field is wrong."""
    return status, re.sub('"param":"[^"]*"', '"param":null', body)


BROKEN = [
    ("models are listed", swap('"id":"scripted"', '"id":"other"')),
    ("a model is retrieved by its id", swap('"id":"scripted"', '"id":"other"')),
    ("an unknown model is 404", accept),
    ("health and readiness", swap('"ready":true', '"ready":false')),
    ("the response has OpenAI's shape", swap('"role":"assistant"', '"role":"model"')),
    ("the response has OpenAI's shape", swap('"object":"chat.completion"', '"object":"chat"')),
    ("token counts add up", number("total_tokens", lambda n: n + 1)),
    ("token counts add up", number("prompt_tokens", lambda n: 0)),
    ("a greedy answer repeats", Alternating("calm", "wild")),
    ("the stream, folded, is the unary response", drop_frame('"content":"m"')),
    ("the stream, folded, is the unary response", drop_frame('"finish_reason":"stop"')),
    ("the stream, folded, is the unary response", swap('"delta":{"content"', '"delta":{"role":"assistant","content"')),
    ("the stream, folded, is the unary response", number("completion_tokens", lambda n: n - 1)),
    ("frames are as SDKs read them", drop_frame("[DONE]")),
    ("frames are as SDKs read them", swap("data: {", "id: 1\ndata: {")),
    ("frames are as SDKs read them", swap("data: {", "data: \n\ndata: {", 1)),
    ("frames are as SDKs read them", swap("chat.completion.chunk", "chat.completion", 1)),
    ("usage comes in a chunk of its own when asked for", drop_frame('"choices":[]')),
    ("max_tokens and max_completion_tokens", number("completion_tokens", lambda n: n + 1)),
    ("null is as if left out", Alternating("calm", "wild")),
    ("stop texts end the answer and are not in it", swap('"content":"', '"content":"sea was ')),
    ("a seed fixes the answer", Alternating("calm", "wild")),
    ("n makes choices", swap('"index":1', '"index":0')),
    ("content as a list of parts", Alternating("calm", "wild")),
    ("their shape, the likeliest first", swap('"logprob":', '"logprob":1')),
    ("their shape, the likeliest first", swap('"bytes":', '"octets":')),
    ("their bytes spell the answer", swap('"bytes":[', '"bytes":[33,')),
    ("the stream has the same ones", drop_frame('"content":"m"')),
    ("json_schema holds at any temperature", swap('\\"large\\"', '\\"huge\\"')),
    ("json_object is a JSON object", swap('"content":"', '"content":"{')),
    ("a schema that cannot be honoured is refused", accept),
    ("wrong fields are refused by name, streamed or not", accept),
    ("wrong fields are refused by name, streamed or not", fail),
    ("wrong fields are refused by name, streamed or not", unnamed),
    ("wrong bodies are refused", fail),
    ("wrong paths and methods are refused", fail),
    ("a prompt that does not fit is refused", accept),
    ("/v1/completions, streamed as unary", drop_frame("[DONE]")),
    ("/tokenize and /detokenize are each other's inverse", swap("walk", "walked")),
    ("four at a time answer as one at a time", AfterThat("calm", "wild")),
    ("a cached beginning changes nothing", Alternating("calm", "wild")),
    ("a client that goes away ends its request", no_cancels),
]  # fmt: skip


@pytest.fixture(scope="module")
def spoiled(running):
    """A server, and what spoils its answers."""
    names = running.__wrapped__.__globals__
    create, spoiler = names["create_app"], Broken(None, None)

    def made(*all, **named):
        spoiler.app = create(*all, **named)
        return spoiler

    names["create_app"] = made
    try:
        with running(reply) as site:
            yield site, spoiler
    finally:
        names["create_app"] = create


@pytest.mark.parametrize(("name", "spoil"), BROKEN, ids=[f"{at}-{name}" for at, (name, _) in enumerate(BROKEN)])
def test_every_check_can_fail(spoiled, name, spoil, monkeypatch):
    monkeypatch.setattr(together, "_WAIT_S", 0.5)
    site, spoiler = spoiled
    spoiler.spoil = spoil
    found = verdict(site, name)
    assert found.result == "FAIL", found
    assert found.reason


def test_every_check_that_a_scripted_server_can_fail_is_among_them():
    left = {check.name for check in CHAT_CHECKS} - {name for name, _ in BROKEN}
    assert left == {
        "request ids are echoed",
        "usage comes in a chunk of its own when asked for",
        # what follows needs a model of its own: tests of the fixtures
        "tool_choice required calls a tool",
        "a chosen tool is the one called",
        "tool_choice none calls none",
        "tool_choice auto, streamed as unary",
        "/v1/responses says what a chat says",
        "/v1/embeddings",
    } - {name for name, _ in BROKEN}


# -------------------------------------------------------------------------------------------------------------- folding


def chunk(delta, reason=None, index=0):
    return {"id": "x", "model": "m", "choices": [{"index": index, "delta": delta, "finish_reason": reason}]}


def call(index, **more):
    return {"tool_calls": [{"index": index, **more}]}


OPENING = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}


def test_folding():
    found = fold(
        [
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning_content": "so"}),
            chunk({"content": "a"}),
            chunk(call(0, **OPENING)),
            chunk(call(0, function={"arguments": "{}"})),
            chunk({}, "tool_calls"),
            {"id": "x", "model": "m", "choices": [], "usage": {"total_tokens": 3}},
        ]
    )
    (choice,) = found["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == "so"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert found["usage"] == {"total_tokens": 3}


@pytest.mark.parametrize(
    "deltas",
    [
        [chunk({"content": "no role"})],
        [chunk({"role": "assistant"}), chunk({"role": "assistant"})],
        [chunk({"role": "assistant"}), chunk({}, "stop"), chunk({"content": "late"})],
        [chunk({"role": "assistant"}), chunk(call(1, **OPENING))],
        [chunk({"role": "assistant"}), chunk(call(0, function={"arguments": "{}"}))],
        [chunk({"role": "assistant"}), chunk(call(0, **OPENING)), chunk(call(0, **OPENING))],
        [{"error": {"message": "no"}}],
    ],
)
def test_streams_that_clients_cannot_fold(deltas):
    with pytest.raises(Failed):
        fold(deltas)


# ----------------------------------------------------------------------------------------------------------- the report

VERDICTS = [Verdict("a", "one", "PASS", "", 0.01), Verdict("a", "other", "FAIL", "x\x1b[2J\n", 1.0)]


def test_the_table_and_the_object():
    text = table(VERDICTS)
    assert "PASS  one" in text
    assert text.endswith("1 passed, 1 failed, 0 skipped")
    assert "\x1b" not in text
    found = as_json("m", VERDICTS)
    assert (found["model"], found["passed"], found["failed"]) == ("m", 1, 1)
    assert json.loads(json.dumps(found))["checks"][1]["result"] == "FAIL"
    assert not passed(VERDICTS)
    assert passed(VERDICTS[:1])
    assert not passed([])


PROGRAM = f"""
import re, sys
ANSWER = {ANSWER!r}
{inspect.getsource(reply)}
from hf2q.cli.exits import guarded
from hf2q.cli.selftest import SelftestOptions, begin
from hf2q.serve.api import server
from hf2q.serve.api.lease import Loaded
from hf2q.serve.api.pool import Pool
from hf2q.serve.api.registered import ModelFile
from hf2q.serve.api.service import Service
from hf2q.serve.chat import open_chat
from hf2q.serve.engine import Engine
from hf2q.errors import LoadError
from hf2q.testing.scripted import scripted_model

def load(file):
    if sys.argv[1] == "broken":
        raise LoadError("the file is broken")
    model = scripted_model(reply)
    engine = Engine(model)
    engine.wait_ready()
    return Loaded(model, engine, open_chat(model))

def work():
    sock = server.listen("127.0.0.1", 0)
    service = Service(Pool([ModelFile(id="scripted", path="scripted.gguf", initial=True)], load))
    test = begin(server.url(sock), service, SelftestOptions(key=None, json=True))
    server.run(sock, service, drain_s=1, note=lambda text: None)
    return test.finish()

sys.exit(guarded(work, []))
"""


def test_beside_a_server_of_its_own():
    """The server is checked, ends by itself, and only the verdicts are on stdout."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, "good"], capture_output=True, text=True, timeout=60)
    (found,) = json.loads(done.stdout)
    assert (done.returncode, found["failed"]) == (0, 0), done.stdout + done.stderr
    assert found["passed"] > 25


def test_a_server_that_cannot_load_ends_with_its_own_error():
    done = subprocess.run([sys.executable, "-c", PROGRAM, "broken"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "the file is broken" in done.stderr
    assert done.stdout == ""
