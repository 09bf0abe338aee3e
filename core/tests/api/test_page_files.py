"""The page's files: how they are served, and what they must not hold."""

import re

import pytest

from hf2q.serve.api.auth import digest
from hf2q.serve.api.page import TYPES, names, paths
from hf2q.serve.api.settings import ApiSettings


def got(site, path, *headers):
    raw = site.raw("GET", path, headers=headers)
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}, body


@pytest.mark.parametrize("path", sorted(paths()))
def test_every_file_has_its_type_and_the_policy(site, path):
    status, headers, body = got(site, path)
    assert status == 200
    assert body
    ending = path.rpartition(".")[2] if path != "/" else "html"
    text = TYPES[ending].startswith("text/")
    assert headers["content-type"] == TYPES[ending] + ("; charset=utf-8" if text else "")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache"
    status, again, body = got(site, path, f"if-none-match: {headers['etag']}")
    assert (status, body, again["etag"]) == (304, b"", headers["etag"])
    status, _, body = got(site, path, 'if-none-match: "other"')
    assert status == 200


@pytest.mark.parametrize(
    "name", ["", "no.js", "..%2Fapi%2Fpage.py", "../api/page.py", "%2e%2e/page.py", "__init__.py", "a/b"]
)
def test_nothing_else_is_served(site, name):
    status, _, body = got(site, f"/web/{name}")
    assert status == 404
    assert b'"error"' in body


def test_the_page_needs_no_key_but_data_does(running):
    with running(settings=ApiSettings(keys=(digest("secret"),))) as site:
        for path in paths():
            assert got(site, path)[0] == 200
        for path in ("/hf2q/v1/status", "/metrics", "/v1/models", "/web/", "/web/no.js"):
            assert got(site, path)[0] == 401
        assert got(site, "/hf2q/v1/status", "authorization: Bearer secret")[0] == 200


def test_the_files_ask_for_nothing_from_elsewhere():
    """No address but links that a model wrote and names of XML; nothing that makes markup or code of text."""
    from importlib.resources import files

    for name in names():
        text = files("hf2q.serve").joinpath("web", name).read_text(encoding="utf-8")
        text = text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", text), name
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "style="):
            assert word not in text, f"{name} has {word}"


def test_status_has_numbers_only(running):
    with running() as site:
        site.json("POST", "/v1/chat/completions", site.user("a secret word"))
        status, headers, found = site.json("GET", "/hf2q/v1/status")
        raw = site.raw("GET", "/hf2q/v1/status")
    assert (status, headers["cache-control"]) == (200, "no-store")
    assert found["ready"] is True
    assert found["uptime_seconds"] > 0
    (model,) = found["models"]
    assert (model["id"], model["loaded"], model["state"]) == ("scripted", True, "ready")
    assert model["engine"]["accepted"] == model["engine"]["finished"] == 1
    assert model["engine"]["slots"]
    assert b"secret" not in raw
