"""Routes besides chat: health, readiness, models, and what is no route."""

import re

import pytest

from hf2q.serve.model import WARM_UP_TOKENS


def test_health(site):
    status, headers, body = site.json("GET", "/health")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert body.pop("uptime_seconds") >= 0
    assert body == {"status": "ok", "model": "scripted", "backend": "reference", "context_length": 4096}


def test_ready(site):
    assert site.json("GET", "/readyz")[::2] == (200, {"ready": True, "detail": "ready"})


def test_models(site):
    status, _, body = site.json("GET", "/v1/models")
    assert (status, body["object"]) == (200, "list")
    (row,) = body["data"]
    assert isinstance(row.pop("created"), int)
    assert row == {
        "id": "scripted",
        "object": "model",
        "owned_by": "hf2q",
        "loaded": True,
        "task": "generate",
        "input_modalities": ["text"],
        "arch": "scripted",
        "backend": "reference",
        "context_length": 4096,
    }
    assert site.json("GET", "/v1/models/scripted")[2] | {"created": 0} == row | {"created": 0}


@pytest.mark.parametrize("path", ["/v1/models/org/name:q4", "/v1/models/org%2Fname:q4", "/v1/models/org%2Fname%3Aq4"])
def test_model_whose_name_has_a_slash(running, path):
    with running(name="org/name:q4") as site:
        status, _, body = site.json("GET", path)
    assert (status, body["id"], body["object"]) == (200, "org/name:q4", "model")


def test_model_that_is_not_there(site):
    status, _, body = site.json("GET", "/v1/models/org/other")
    error = body["error"]
    assert (status, error["code"], error["param"], error["type"]) == (
        404,
        "model_not_found",
        "model",
        "invalid_request_error",
    )
    assert "'org/other'" in error["message"]
    assert "'scripted'" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1", 404, None),
        ("GET", "/v1/nothing", 404, None),
        ("POST", "/v1/engines", 404, None),
        ("POST", "/v1/moderations", 404, None),
        ("GET", "/schema", 404, None),
        ("GET", "/schema/openapi.json", 404, None),
        ("GET", "/docs", 404, None),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("GET", "/v1/completions", 405, "POST"),
        ("GET", "/v1/embeddings", 405, "POST"),
        ("PUT", "/v1/chat/completions", 405, "POST"),
        ("POST", "/v1/models", 405, "GET"),
        ("DELETE", "/v1/models/scripted", 405, "GET"),
        ("POST", "/health", 405, "GET"),
    ],
)
def test_no_route(site, method, path, status, allow):
    found, headers, body = site.json(method, path)
    assert (found, headers["content-type"]) == (status, "application/json")
    assert body["error"]["type"] == "invalid_request_error"
    assert path in body["error"]["message"]
    assert headers["x-request-id"]
    if allow:
        assert allow in re.split(", *", headers["allow"])


@pytest.mark.parametrize(
    "path", ["/health", "/readyz", "/v1/models", "/v1/models/scripted", "/v1/models/x", "/nothing"]
)
def test_head_is_get_without_a_body(site, path):
    get, head = (site.raw(method, path).partition(b"\r\n\r\n") for method in ("GET", "HEAD"))
    assert head[2] == b""
    status, headers, _ = site.parsed(head[0] + b"\r\n\r\n")
    wanted, others, _ = site.parsed(get[0] + b"\r\n\r\n")
    changing = {"date": "", "x-request-id": ""} | ({"content-length": ""} if path == "/health" else {})  # its uptime
    assert (status, headers | changing) == (wanted, others | changing)
    assert int(headers["content-length"]) > 0


def test_head_where_there_is_no_get(site):
    response = site.raw("HEAD", "/v1/chat/completions")
    assert response.startswith(b"HTTP/1.1 405 ")
    assert response.endswith(b"\r\n\r\n")
    assert "HEAD" in site.parsed(site.raw("POST", "/health"))[1]["allow"]
    assert "HEAD" not in site.parsed(response)[1]["allow"]


def test_request_id_is_made_or_kept(site):
    made = [site.json("GET", "/health")[1]["x-request-id"] for _ in range(2)]
    assert made[0] != made[1]
    assert site.json("GET", "/health", headers=["X-Request-Id: my.id_1-2"])[1]["x-request-id"] == "my.id_1-2"
    assert site.json("GET", "/nothing", headers=["x-request-id: abc"])[1]["x-request-id"] == "abc"
    for unusable in ("a b", "x" * 257, "é", "a;b"):
        assert site.json("GET", "/health", headers=[f"x-request-id: {unusable}"])[1]["x-request-id"] != unusable


def test_no_cross_origin_access_unless_asked_for(site):
    for method, path in (("GET", "/v1/models"), ("OPTIONS", "/v1/chat/completions")):
        headers = ["origin: http://evil.example", "access-control-request-method: POST"]
        found = site.parsed(site.raw(method, path, headers=headers))[1]
        assert not [name for name in found if name.startswith("access-control")]


def test_while_loading(running):
    with running(opened=False) as site:
        assert site.json("GET", "/health")[0] == 200
        assert site.json("GET", "/health")[2]["model"] is None
        status, headers, body = site.json("GET", "/readyz")
        assert (status, headers["retry-after"], body["ready"]) == (503, "1", False)
        assert site.json("GET", "/v1/models")[2]["data"][0]["loaded"] is False
        status, headers, body = site.json("POST", "/v1/chat/completions", site.user("hi"))
        assert (status, headers["retry-after"]) == (503, "1")
        assert (body["error"]["type"], body["error"]["code"]) == ("server_error", "not_ready")


def test_after_the_engine_has_failed(running):
    def broken(rows, tokens):
        if tokens > WARM_UP_TOKENS:  # the warm-up passes
            raise RuntimeError("device lost")

    with running(before=broken) as site:
        status, headers, body = site.json("POST", "/v1/chat/completions", site.user("hi"))
        assert (status, body["error"]["type"]) == (500, "server_error")
        assert "device lost" in body["error"]["message"]
        assert headers["x-should-retry"] == "false"
        assert site.json("GET", "/health")[0] == 200
        assert site.json("GET", "/readyz")[0] == 503
        status, headers, body = site.json("POST", "/v1/chat/completions", site.user("hi"))
        assert (status, body["error"]["code"], headers["x-should-retry"]) == (503, "not_ready", "false")


def test_while_stopping(running):
    with running() as site:
        site.service.stop()
        assert site.json("GET", "/readyz")[::2] == (503, {"ready": False, "detail": "the server is shutting down"})
        assert site.json("POST", "/v1/chat/completions", site.user("hi"))[0] == 503


def test_what_the_row_of_a_model_says(running):
    metadata = {
        "hf2q.recipe": "Q4_K_M",
        "hf2q.version": "0.1.0",
        "hf2q.source.name": "org/name",
        "scripted.context_length": 131072,
        "scripted.embedding_length": 64,
        "scripted.expert_count": 8,
        "scripted.expert_used_count": 2,
        "scripted.attention.sliding_window": 512,
    }

    def change(model):
        model.parameters, model.file_size, model.vision = 1000, 600, object()

    with running(metadata=metadata, change=change) as site:
        row = site.json("GET", "/v1/models/scripted")[2]
    assert {name: row[name] for name in row if name not in ("created", "object", "owned_by")} == {
        "id": "scripted",
        "loaded": True,
        "task": "generate",
        "arch": "scripted",
        "backend": "reference",
        "context_length": 4096,
        "max_context_length": 131072,
        "input_modalities": ["text", "image"],
        "vision_projector": True,
        "quant_type": "Q4_K_M",
        "quant_bpw": 4.8,
        "moe_experts": 8,
        "moe_experts_per_tok": 2,
        "sliding_window": 512,
        "hidden_size": 64,
        "provenance": {"version": "0.1.0", "source.name": "org/name", "recipe": "Q4_K_M"},
    }
