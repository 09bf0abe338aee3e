"""Who may use a server: API keys, names of the server, origins of pages."""

import hmac
import json

import pytest

from hf2q.serve.api.app import ROUTES
from hf2q.serve.api.auth import digest
from hf2q.serve.api.hosts import name_of
from hf2q.serve.api.page import paths
from hf2q.serve.api.settings import ApiSettings

KEYS = ("first-key", "second-key")
CHAT = "/v1/chat/completions"
ORIGIN = "https://app.example"


@pytest.fixture(scope="module")
def locked(running):
    settings = ApiSettings(
        keys=tuple(map(digest, KEYS)),
        hosts=frozenset({"localhost", "127.0.0.1", "::1", "box.lan", "*.inner.lan"}),
        cors_origins=frozenset({ORIGIN}),
    )
    with running(settings=settings) as site:
        yield site


def every_path():
    """A method and a path for each route, and for what is none."""
    for handler in ROUTES:
        for path in handler.paths:
            filled = path.replace("{model_id:path}", "scripted").replace("{name:str}", "nothing.js")
            for method in sorted(handler.http_methods - {"OPTIONS"}):
                yield str(method.value if hasattr(method, "value") else method), filled
    yield from [("GET", "/nothing"), ("POST", "/v1/nothing"), ("PUT", CHAT), ("OPTIONS", CHAT)]
    yield from [("GET", "/web/../health"), ("GET", "//"), ("GET", "/health/")]


def head(key=None, host="localhost", *more):
    return [f"host: {host}", *([f"authorization: Bearer {key}"] if key else []), *more]


def request(site, method, path, headers, body=b""):
    """As `Site.json`, with a Host header of the test's own."""
    with site.connect(method, path, body, [*headers, "connection: close"], host=None) as sock:
        return site.parsed(b"".join(iter(lambda: sock.recv(65536), b"")))


@pytest.mark.parametrize(("method", "path"), [each for each in every_path() if each[1] not in paths()])
def test_every_path_needs_a_key(locked, method, path):
    for key in (None, "wrong", "first-ke", "firsT-key"):
        status, headers, body = request(locked, method, path, head(key))
        assert status == 401
        assert headers["www-authenticate"] == "Bearer"
        assert headers["x-request-id"]
        assert "server" not in headers
        if method != "HEAD":
            assert (body["error"]["type"], body["error"]["code"]) == ("authentication_error", "invalid_api_key")


@pytest.mark.parametrize("key", KEYS)
def test_any_of_the_keys_will_do(locked, key):
    assert request(locked, "GET", "/v1/models", head(key))[0] == 200
    assert request(locked, "GET", "/v1/models", ["host: localhost", f"authorization: bearer {key}"])[0] == 200
    assert request(locked, "GET", "/nothing", head(key))[0] == 404
    assert request(locked, "POST", CHAT, head(key), locked.user("hi"))[0] == 200


@pytest.mark.parametrize("value", ["first-key", "Basic first-key", "Bearer", "Bearer  ", "Token first-key"])
def test_other_forms_of_authorization(locked, value):
    assert request(locked, "GET", "/health", ["host: localhost", f"authorization: {value}"])[0] == 401


def test_the_page_holds_no_data_and_needs_no_key(locked):
    for path in paths():
        with locked.connect("GET", path, b"", [*head(), "connection: close"], host=None) as sock:
            assert b"".join(iter(lambda: sock.recv(65536), b"")).startswith(b"HTTP/1.1 200 ")


def test_keys_are_compared_in_constant_time(locked, monkeypatch):
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or compare(a, b))
    request(locked, "GET", "/health", head("first-key"))
    assert [own for own, _ in compared] == [digest(key) for key in KEYS]  # all of them, though the first fits
    assert len({len(given) for _, given in compared}) == 1


def test_health_can_be_public(running):
    settings = ApiSettings(keys=(digest("key"),), public_health=True)
    with running(settings=settings) as site:
        assert site.json("GET", "/health")[0] == 200
        assert site.json("GET", "/readyz")[0] == 200
        assert site.json("GET", "/v1/models")[0] == 401
        assert site.json("GET", "/health/")[0] in (401, 404)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:8080", 200),
        ("box.lan", 200),
        ("a.inner.lan:1", 200),
        ("inner.lan", 403),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("evil-inner.lan", 403),
        ("127.0.0.1.evil.example:8080", 403),
        ("10.0.0.1", 403),
        ("", 403),
    ],
)
def test_names_of_the_server(locked, host, status):
    found, _, body = request(locked, "GET", "/health", head(KEYS[0], host))
    assert found == status
    if status == 403:
        assert body["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    ("host", "name"),
    [("A.b:80", "a.b"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("::1", "::1"), ("a", "a"), (" a:1 ", "a"), ("", "")],
)
def test_the_name_in_a_host_header(host, name):
    assert name_of(host) == name


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "file://"])
def test_a_page_of_another_origin_cannot_act(locked, origin):
    for path in ("/shutdown", "/hf2q/v1/models/activate", CHAT):
        status, headers, body = request(locked, "POST", path, head(KEYS[0], "localhost", f"origin: {origin}"))
        assert (status, body["error"]["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in headers


def test_the_servers_own_page_can(locked):
    headers = head(KEYS[0], "localhost:8080", "origin: http://localhost:8080")
    assert request(locked, "POST", CHAT, headers, locked.user("hi"))[0] == 200


def test_preflight(locked):
    asked = [
        f"origin: {ORIGIN}",
        "access-control-request-method: POST",
        "access-control-request-headers: authorization, x-stainless-lang, x-other",
    ]
    status, headers, _ = request(locked, "OPTIONS", CHAT, [*head(), *asked])
    assert status == 204
    assert headers["access-control-allow-origin"] == ORIGIN
    assert headers["access-control-allow-methods"] == "GET, POST, OPTIONS"
    assert headers["access-control-allow-headers"].split(", ") == [
        "content-type",
        "authorization",
        "x-request-id",
        "x-stainless-lang",
    ]
    assert headers["vary"] == "origin"
    assert headers["x-request-id"]
    asked[0] = "origin: https://evil.example"
    status, headers, _ = request(locked, "OPTIONS", CHAT, [*head(), *asked])
    assert status == 401
    assert "access-control-allow-origin" not in headers


def test_answers_and_refusals_can_be_read_by_pages_of_allowed_origins(locked):
    for key, status in ((KEYS[0], 200), (None, 401)):
        found, headers, _ = request(locked, "POST", CHAT, head(key, "localhost", f"origin: {ORIGIN}"), locked.user("a"))
        assert (found, headers["access-control-allow-origin"]) == (status, ORIGIN)
    assert "access-control-allow-origin" not in request(locked, "GET", "/health", head(KEYS[0]))[1]


def test_any_origin(running):
    with running(settings=ApiSettings(cors_origins=frozenset({"*"}))) as site:
        headers = site.json("GET", "/health", headers=["origin: https://x.example"])[1]
        assert headers["access-control-allow-origin"] == "https://x.example"


def test_stopping_needs_a_key_where_there_are_keys(locked):
    assert request(locked, "POST", "/shutdown", head())[0] == 401
    status, _, body = request(locked, "POST", "/shutdown", head(KEYS[0]))
    assert (status, body["error"]["code"]) == (501, "not_implemented")  # nothing here that could stop


def test_stopping_without_keys_is_for_this_machine(site, monkeypatch):
    monkeypatch.setattr("hf2q.serve.api.control.is_loopback", lambda address: False)
    status, _, body = site.json("POST", "/shutdown")
    assert (status, body["error"]["code"]) == (403, "shutdown_not_allowed")
    assert "--api-key" in body["error"]["message"]


def test_json_even_for_what_is_refused_before_the_router(locked):
    status, headers, body = request(locked, "POST", CHAT, head("wrong"), locked.user("hi"))
    assert (status, headers["content-type"], headers["connection"]) == (401, "application/json", "close")
    assert json.dumps(body)
