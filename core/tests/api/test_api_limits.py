"""Peers that are slow, greedy or speak no HTTP."""

import json
import socket
import time

import pytest

from hf2q.serve.api.settings import ApiSettings

CHAT = "/v1/chat/completions"


def rest(sock):
    """All that comes until the server closes."""
    found = b""
    try:
        while piece := sock.recv(65536):
            found += piece
    except ConnectionError:
        pass
    return found


def send(site, data):
    sock = socket.create_connection(site.address, timeout=20)
    sock.sendall(data)
    return sock


def trickle(sock, seconds):
    """Send a byte now and then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sock.sendall(b"a")
        time.sleep(0.05)


@pytest.fixture(scope="module")
def strict(running):
    settings = ApiSettings(head_s=0.4, body_s=0.6, max_head=4096, max_body=1000, max_connections=4)
    with running(settings=settings) as site:
        yield site


def refused(site, response, status, code):
    found, headers, body = site.parsed(response)
    assert (found, body["error"]["code"]) == (status, code)
    assert headers["content-type"] == "application/json"
    assert headers["connection"] == "close"
    assert headers["x-request-id"]


def test_head_that_is_too_long(strict):
    with send(strict, b"GET /health HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * 5000) as sock:
        refused(strict, rest(sock), 431, "request_too_large")


@pytest.mark.parametrize(
    "head", [b"GET /health HTTP/1.1\r\nx-long: " + b"a" * 5000, b"GET /" + b"a" * 5000 + b" HTTP/1.1"]
)
def test_head_that_is_too_long_and_comes_at_once(strict, head):
    with send(strict, head + b"\r\nhost: x\r\n\r\n") as sock:
        refused(strict, rest(sock), 431, "request_too_large")


@pytest.mark.parametrize(
    "data",
    [
        b"GET /health HTTP/3.7\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",  # no host
        b"GET /health HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: nine\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
    ],
)
def test_what_is_no_http(strict, data):
    with send(strict, data) as sock:
        refused(strict, rest(sock), 400, "invalid_http")


@pytest.mark.parametrize("begun", [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
def test_head_that_trickles(strict, begun):
    start = time.monotonic()
    with send(strict, begun) as sock:
        for _ in range(3 if begun else 0):
            time.sleep(0.1)
            sock.sendall(b"a")
        refused(strict, rest(sock), 408, "request_timeout")
    assert time.monotonic() - start < 3


def test_second_head_that_trickles(strict):
    with send(strict, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n") as sock:
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        time.sleep(0.5)  # to be idle between requests is no offence
        sock.sendall(b"GET /he")
        refused(strict, rest(sock), 408, "request_timeout")


def test_body_that_trickles(strict):
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n"
    with send(strict, head.encode() + b'{"model"') as sock:
        for _ in range(3):
            time.sleep(0.15)
            sock.sendall(b" ")
        refused(strict, rest(sock), 408, "request_timeout")


def test_a_body_that_goes_on_after_the_answer(strict):
    with send(strict, b"POST /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n") as sock:
        assert sock.recv(65536).startswith(b"HTTP/1.1 404 ")
        with pytest.raises(ConnectionError):
            trickle(sock, seconds=5)


def test_connections_too_many(strict):
    held = [send(strict, b"") for _ in range(4)]
    try:
        time.sleep(0.05)
        with send(strict, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n") as sock:
            response = rest(sock)
        refused(strict, response, 503, "too_many_connections")
        assert b"retry-after: 1" in response
    finally:
        for each in held:
            each.close()
    strict.wait_for(lambda: strict.json("GET", "/health")[0] == 200)


def test_a_reader_that_does_not_read_loses_its_answer_alone(running):
    with running(settings=ApiSettings(stall_s=0.3, ping_s=60)) as site:
        # accepted connections get this from the listener: the system would take megabytes, and the whole answer
        site.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(site.address)
            more = {"stream": True, "logprobs": True, "top_logprobs": 20}
            body = json.dumps(site.user("x" * 3000, **more)).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
            slow.sendall(head.encode() + b"\r\n\r\n" + body)
            site.wait_for(lambda: site.service.busy == 1)
            assert site.json("POST", CHAT, site.user("meanwhile"))[2]["choices"][0]["message"]["content"] == "meanwhile"
            site.wait_for(lambda: site.service.busy == 0)  # with the connection still open on our side
            assert site.steps < 500, "the answer was made to its end"
        site.wait_for(lambda: not site.engine.active)
