"""Several models over HTTP: loading on demand, activation, and what the server says of itself."""

import json
import threading
from contextlib import contextmanager

import pytest
import uvicorn
from sites import Site, echo

import hf2q
from hf2q.errors import LoadError
from hf2q.serve.api.app import create_app
from hf2q.serve.api.connection import connections
from hf2q.serve.api.lease import Loaded
from hf2q.serve.api.listening import listen, url
from hf2q.serve.api.pool import Pool
from hf2q.serve.api.registered import ModelFile
from hf2q.serve.api.service import Service
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.chat import open_chat
from hf2q.serve.engine import Engine
from hf2q.testing.scripted import scripted_model

CHAT, ACTIVATE, RUNTIME = "/v1/chat/completions", "/hf2q/v1/models/activate", "/hf2q/v1/runtime"


@contextmanager
def several(*, on_demand=True, max_models=2, fails=(), **settings):
    """A server with the models a, b and c (aliased gpt), none of them loaded; its loads wait for `gate`."""
    loads, gate = [], threading.Event()
    gate.set()

    def load(file):
        loads.append(file.id)
        assert gate.wait(20)
        if file.id in fails:
            raise LoadError(f"{file.path} is broken")
        model = scripted_model(echo, name=file.id)
        engine = Engine(model, observer=service.watchers.observer(file.id))
        engine.wait_ready()
        return Loaded(model, engine, open_chat(model))

    names = {"a": (), "b": (), "c": ("gpt",)}
    files = [
        ModelFile(id=id, path=f"/secret/{id}.gguf", aliases=also, arch="scripted", nbytes=7)
        for id, also in names.items()
    ]
    service = Service(Pool(files, load, max_models=max_models), on_demand=on_demand)
    settings = ApiSettings(**settings)
    app = create_app(service, settings)
    sock = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        app, log_config=None, lifespan="off", access_log=False, ws="none", http=connections(settings)
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    site = Site(service, None, url(sock))
    site.loads, site.gate = loads, gate
    try:
        yield site
    finally:
        gate.set()
        service.pool.close()
        server.should_exit = True
        thread.join()


def ask(site, model, text="hi", **more):
    return site.json("POST", CHAT, {**site.user(text, **more), "model": model})


def states(site):
    return "".join(model["state"][0] for model in site.json("GET", RUNTIME)[2]["models"])


def test_models_are_loaded_when_they_are_asked_for():
    with several() as site:
        assert site.json("GET", "/readyz")[0] == 200
        assert [row["loaded"] for row in site.json("GET", "/v1/models")[2]["data"]] == [False] * 3
        status, _, body = ask(site, "a", "to a")
        assert (status, body["model"], body["choices"][0]["message"]["content"]) == (200, "a", "to a")
        assert ask(site, "gpt")[0] == 200
        assert site.loads == ["a", "c"]
        assert ask(site, "b")[0] == 200
        assert (site.loads, states(site)) == (["a", "c", "b"], "err")
        assert site.json("GET", "/health")[2]["model"] == "b"
        assert ask(site, "d")[0] == 404


def test_two_requests_wait_for_one_load_and_a_client_that_leaves_does_not_stop_it():
    with several() as site:
        site.gate.clear()
        waiting = [site.connect("POST", CHAT, {**site.user("x"), "model": "a"}) for _ in range(3)]
        site.wait_for(lambda: site.loads)
        waiting.pop().close()
        site.gate.set()
        for each in waiting:
            assert each.recv(65536).startswith(b"HTTP/1.1 200 ")
            each.close()
        assert site.loads == ["a"]
        site.wait_for(lambda: site.service.busy == 0)


def test_a_client_that_leaves_while_alone():
    with several() as site:
        site.gate.clear()
        with site.connect("POST", CHAT, {**site.user("x"), "model": "a"}):
            site.wait_for(lambda: site.loads)
        site.gate.set()
        site.wait_for(lambda: states(site) == "rkk")


def test_waiting_is_bounded():
    with several(load_wait_s=0.2) as site:
        site.gate.clear()
        status, headers, body = ask(site, "a")
        assert (status, body["error"]["code"], headers["retry-after"]) == (503, "not_ready", "1")
        site.gate.set()
        site.wait_for(lambda: states(site) == "rkk")
        assert ask(site, "a")[0] == 200


def test_no_room_while_all_are_in_use():
    with several(max_models=1) as site:
        assert ask(site, "a")[0] == 200
        lease = site.service.lease("a")
        status, headers, body = ask(site, "b")
        assert (status, body["error"]["code"], headers["retry-after"]) == (503, "no_room", "1")
        lease.close()
        assert ask(site, "b")[0] == 200


def test_one_that_cannot_be_loaded():
    with several(fails={"a"}) as site:
        for _ in range(2):
            status, headers, body = ask(site, "a")
            assert (status, body["error"]["code"], headers["x-should-retry"]) == (503, "model_load_failed", "false")
            assert "a is broken" in body["error"]["message"]
            assert "/secret" not in json.dumps(body)
        assert site.loads == ["a"]  # it is not tried with every request
        assert site.json("POST", ACTIVATE, {"model": "a"})[0] == 503
        assert site.loads == ["a", "a"]
        assert ask(site, "b")[0] == 200
        failed = site.json("GET", RUNTIME)[2]["models"][0]
        assert (failed["state"], failed["detail"]) == ("failed", "a is broken")


def test_activation():
    with several(on_demand=False, max_models=2) as site:
        status, _, body = ask(site, "a")
        assert (status, body["error"]["code"]) == (503, "not_ready")
        status, _, body = site.json("POST", ACTIVATE, {"model": "a"})
        assert (status, body["id"], body["state"]) == (200, "a", "ready")
        assert site.json("POST", ACTIVATE, {"model": "a"})[0] == 200
        assert site.json("POST", ACTIVATE, {"model": "gpt"})[2]["id"] == "c"
        status, headers, body = site.json("POST", ACTIVATE, {"model": "b"})
        assert (status, body["error"]["code"], headers["x-should-retry"]) == (409, "no_room", "false")
        assert '"evict": true' in body["error"]["message"]
        status, _, body = ask(site, "b")
        assert (status, body["error"]["code"], body["error"]["param"]) == (400, "model_not_loaded", "model")
        lease = site.service.lease("a")
        assert site.json("POST", ACTIVATE, {"model": "b", "evict": True})[0] == 200
        assert states(site) == "rre"
        lease.close()
        assert site.loads == ["a", "c", "b"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "model"),
        ({"model": 5}, 400, "model"),
        ({"model": "a", "evict": 1}, 400, "evict"),
        ({"model": "a", "path": "/etc/passwd"}, 400, "path"),
        ({"model": "/secret/a.gguf"}, 404, "model"),
        ({"model": "../a"}, 404, "model"),
        ({"model": "a.gguf"}, 404, "model"),
        ([], 400, None),
    ],
)
def test_what_activation_refuses(body, status, param):
    with several() as site:
        found, _, answer = site.json("POST", ACTIVATE, body)
        assert (found, answer["error"]["param"]) == (status, param)
        assert site.loads == []


def test_runtime():
    with several(max_models=2) as site:
        ask(site, "c")
        lease = site.service.lease("c")
        status, headers, found = site.json("GET", RUNTIME)
        lease.close()
        assert (status, headers["cache-control"]) == (200, "no-store")
        assert (found["schema_version"], found["version"], found["ready"]) == (1, hf2q.__version__, True)
        assert (found["backends"], found["slots"], found["supervised"]) == (["reference"], 4, False)
        pool = {"loaded": 1, "max_models": 2, "bytes": 7, "memory_budget": None, "on_demand": True}
        assert found["pool"] == pool
        a, _, c = found["models"]
        assert (a["state"], a["arch"], a["backend"], a["slots"]) == ("known", "scripted", None, 0)
        assert c.pop("idle_seconds") >= 0
        assert c.pop("load_seconds") > 0
        assert c == {
            "id": "c",
            "aliases": ["gpt"],
            "task": "generate",
            "state": "ready",
            "detail": None,
            "arch": "scripted",
            "backend": "reference",
            "context_length": 4096,
            "vision": False,
            "bytes": 7,
            "leases": 1,
            "slots": 4,
        }
        assert found["limits"]["max_body"] == ApiSettings().max_body
        assert {"POST /v1/chat/completions", "GET /health", "POST /shutdown"} <= set(found["routes"])
        assert "/secret" not in json.dumps(found)
