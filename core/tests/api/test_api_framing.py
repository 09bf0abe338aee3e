"""Frames of all endpoints over a bare socket; connections that are kept, and leases that are given back."""

import json
import socket

import pytest

CHAT = "/v1/chat/completions"
GOOD = {
    CHAT: {"model": "scripted", "messages": [{"role": "user", "content": "ab"}]},
    "/v1/completions": {"model": "scripted", "prompt": "ab"},
    "/tokenize": {"content": "ab"},
    "/detokenize": {"tokens": [97]},
    "/apply-template": {"messages": [{"role": "user", "content": "ab"}]},
}


def sent(path, body):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def response(sock):
    """Status, headers and body of one response with a length."""
    found = b""
    while b"\r\n\r\n" not in found:
        piece = sock.recv(65536)
        assert piece, found
        found += piece
    head, _, body = found.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += sock.recv(65536)
    return int(first.split()[1]), headers, json.loads(body)


def frames(raw):
    """The frames of a chunked stream that ended as it should."""
    _, _, body = raw.partition(b"\r\n\r\n")
    data = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            assert body == b"\r\n"
            return data.decode().split("\n\n")
        data, body = data + body[:length], body[length + 2 :]


@pytest.mark.parametrize("path", GOOD)
def test_a_connection_is_kept_until_something_is_refused(site, path):
    with socket.create_connection(site.address, timeout=30) as sock:
        for _ in range(2):
            sock.sendall(sent(path, GOOD[path]))
            found, headers, _ = response(sock)
            assert (found, headers["content-type"], headers.get("connection")) == (200, "application/json", None)
        sock.sendall(sent(path, GOOD[path]) + sent(path, GOOD[path]))  # two at once
        assert response_pair(sock) == [200, 200]
    for body, status in (({"nonsense": 1}, 400), ([], 400), (GOOD[path] | {"model": "nobody's"}, 404)):
        with socket.create_connection(site.address, timeout=30) as sock:
            sock.sendall(sent(path, body))
            found, headers, _ = response(sock)
            assert (found, headers["content-type"], headers["connection"]) == (status, "application/json", "close")
            assert sock.recv(1) == b""


def response_pair(sock):
    found = b""
    while found.count(b"HTTP/1.1 ") < 2 or not found.rstrip().endswith(b"}"):
        found += sock.recv(65536)
    return [int(part.split()[0]) for part in found.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("more", [{}, {"n": 2}, {"n": 2, "stream_options": {"include_usage": True}}])
def test_frames(site, path, more):
    *found, end = frames(site.raw("POST", path, GOOD[path] | {"stream": True} | more))
    assert end == ""
    assert found[-1] == "data: [DONE]"
    assert all(frame.startswith("data: {") and "\n" not in frame for frame in found[:-1])
    chunks = [json.loads(frame[6:]) for frame in found[:-1]]
    assert len({(chunk["id"], chunk["created"], chunk["object"]) for chunk in chunks}) == 1
    indices = [choice["index"] for chunk in chunks for choice in chunk["choices"]]
    assert indices[0] == 0
    asked = "stream_options" in more
    assert all(("usage" in chunk) == asked for chunk in chunks)
    if asked:
        assert [chunk["usage"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert [not chunk["choices"] for chunk in chunks] == [False] * (len(chunks) - asked) + [True] * asked


def test_a_call_as_it_is_sent(caller):
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'
    body = caller.user(call, tools=[{"type": "function", "function": {"name": "f"}}], stream=True, temperature=0)
    chunks = [json.loads(frame[6:]) for frame in frames(caller.raw("POST", CHAT, body))[:-2]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    opener = deltas[1]["tool_calls"][0]
    assert opener == {
        "index": 0,
        "id": opener["id"],
        "type": "function",
        "function": {"name": "f", "arguments": ""},
    }
    pieces = [one for delta in deltas[2:-1] for one in delta["tool_calls"]]
    assert all(set(piece) == {"index", "function"} and set(piece["function"]) == {"arguments"} for piece in pieces)
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == {"a": "b"}
    assert deltas[-1] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_every_lease_is_given_back(running):
    with running() as site:
        member = site.service.member("scripted")
        for path, good in GOOD.items():
            for body in (good, good | {"stream": True}, good | {"nonsense": 1}, good | {"model": "other"}):
                site.raw("POST", path, body)
        for more in ({"max_tokens": 0}, {"logit_bias": {"99999": 1}}, {"chat_template_kwargs": {"x": 1}}, {"n": 99}):
            assert site.json("POST", CHAT, GOOD[CHAT] | more)[0] == 400
        for path in (CHAT, "/v1/completions"):
            with site.connect("POST", path, GOOD[path] | {"stream": True}):
                pass
            with site.connect("POST", path, GOOD[path]):
                pass
        site.wait_for(lambda: member.leases == 0)
        site.wait_for(lambda: not site.engine.active and not site.engine.waiting)


def test_a_slow_client_of_many_choices_gets_everything(site):
    text = "x" * 400
    with site.connect("POST", CHAT, site.user(text, stream=True, n=3)) as sock:
        sock.settimeout(30)
        raw = b"".join(iter(lambda: sock.recv(512), b""))
    chunks = [json.loads(frame[6:]) for frame in frames(raw)[:-2]]
    for index in range(3):
        own = [c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(own) == text
