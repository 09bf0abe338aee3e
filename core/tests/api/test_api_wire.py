"""What goes over the socket: framing, pings, failures in mid-stream, clients that leave, queues that are full."""

import json
import socket
import threading
import time
from contextlib import contextmanager

from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.model import WARM_UP_TOKENS

CHAT = "/v1/chat/completions"


class Gate:
    """Holds the model at each token of an answer until it is let through."""

    def __init__(self):
        self.permits = threading.Semaphore(0)
        self.open = False
        self.arrived = 0
        self.fault = None

    def __call__(self, rows, tokens):
        if self.open or tokens == WARM_UP_TOKENS:  # the warm-up's prefill
            return
        self.arrived += 1
        if self.arrived > 1:  # its decode is the first of one token
            self.permits.acquire()
            if self.fault is not None:
                raise self.fault

    def release(self, count=1000):
        self.open = count >= 1000
        self.permits.release(count)


@contextmanager
def gated(running, **more):
    gate = Gate()
    with running(before=gate, slots=1, **more) as site:
        try:
            yield site, gate
        finally:
            gate.release()


def frames_of(body):
    """The chunks of a chunked body, joined, split into frames; checks that it ended properly."""
    data = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            assert body == b"\r\n"
            return data.decode().split("\n\n")
        data, body = data + body[:length], body[length + 2 :]


def read_until(sock, wanted):
    found = b""
    while wanted not in found:
        piece = sock.recv(65536)
        assert piece, f"the server closed before {wanted!r}: {found!r}"
        found += piece
    return found


def test_framing(site):
    response = site.raw("POST", CHAT, site.user("hé", stream=True))
    head, _, body = response.partition(b"\r\n\r\n")
    headers = site.parsed(head + b"\r\n\r\n")[1]
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["transfer-encoding"] == "chunked"
    assert headers["x-request-id"]
    *frames, end = frames_of(body)
    assert end == ""
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    assert frames[-1] == "data: [DONE]"
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "h"},
        {"content": "é"},
        {},
    ]
    assert {"usage", "service_tier"}.isdisjoint(chunks[0])
    assert chunks[0]["choices"][0] | {"delta": 0} == {"index": 0, "delta": 0, "finish_reason": None, "logprobs": None}


def test_unary_shape(site):
    status, headers, body = site.json("POST", CHAT, site.user("hi"))
    assert (status, headers["content-type"]) == (200, "application/json")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi", "refusal": None},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ]
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 3


def test_connection_is_kept_after_a_unary_answer(site):
    with site.connect("POST", CHAT, site.user("one")) as sock:
        assert b'"one"' in read_until(sock, b"}}}")
        body = json.dumps(site.user("two")).encode()
        sock.sendall(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        assert b'"two"' in read_until(sock, b"}}}")


def test_pings_while_nothing_comes(running):
    with gated(running, settings=ApiSettings(ping_s=0.02)) as (site, gate):
        with site.connect("POST", CHAT, site.user("ab", stream=True)) as sock:
            before = read_until(sock, b": ping\n\n")
            assert b'"role":"assistant"' in before
            assert before.index(b'"role"') < before.index(b": ping")
            gate.release()
            after = read_until(sock, b"[DONE]")
        assert b"\nid:" not in before + after
        assert b'"content":"a"' in after
        assert b'"content":"b"' in after


def test_failure_in_mid_stream(running):
    with gated(running) as (site, gate):
        with site.connect("POST", CHAT, site.user("abc", stream=True)) as sock:
            gate.release(2)
            read_until(sock, b'"content":"b"')
            gate.fault = RuntimeError("device lost")
            gate.release()
            rest = read_until(sock, b"0\r\n\r\n")
            assert sock.recv(1) == b""  # and the connection is closed
        (error,) = [line for line in rest.decode().splitlines() if line.startswith("data: ")]
        found = json.loads(error.removeprefix("data: "))
        assert found["error"]["type"] == "server_error"
        assert found["error"]["code"] == "generation_error"
        assert "device lost" in found["error"]["message"]
        assert b"[DONE]" not in rest
        assert b"event:" not in rest


def test_a_stream_that_fails_is_logged_under_its_request_id(running, caplog):
    with (
        gated(running) as (site, gate),
        site.connect("POST", CHAT, site.user("a", stream=True), ["x-request-id: mine"]) as s,
    ):
        gate.fault = RuntimeError("device lost")
        gate.release(1)
        read_until(s, b"0\r\n\r\n")
        (record,) = [record for record in caplog.records if record.name == "hf2q.serve.api.errors"]
        assert record.getMessage().startswith("request mine: 500, the engine failed")
        assert record.exc_info


def test_client_that_leaves_before_its_body_is_complete(running, caplog):
    with running() as site, caplog.at_level("INFO"):
        with socket.create_connection(site.address, timeout=30) as sock:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{{"
            sock.sendall(head.encode())
            time.sleep(0.05)
        assert site.json("POST", CHAT, site.user("next"))[0] == 200
        told = [record.getMessage() for record in caplog.records if record.name.startswith("hf2q.serve.api")]
        assert [line.split()[2] for line in told] == ["499", "200"]


def test_client_that_leaves_a_stream(running):
    with gated(running) as (site, gate):
        with site.connect("POST", CHAT, site.user("x" * 200, stream=True)) as sock:
            gate.release(3)
            read_until(sock, b'"content":"x"')
        assert site.engine.active
        gate_cancelled(site, gate)


def test_client_that_leaves_a_unary_request(running):
    with gated(running) as (site, gate):
        with site.connect("POST", CHAT, site.user("x" * 200)):
            gate.release(3)
            site.wait_for(lambda: site.engine.active and site.steps >= 5)
        gate_cancelled(site, gate)


def gate_cancelled(site, gate):
    """The request that runs is cancelled, and ends with the step that it is in."""
    for handle in site.engine.handles:  # none, when on a busy machine it has ended between two looks
        site.wait_for(lambda handle=handle: handle.cancelled)
    before = site.steps
    gate.release()
    site.wait_for(lambda: not site.engine.active)
    assert site.steps <= before + 1


def test_client_that_leaves_while_it_waits_in_the_queue(running):
    with gated(running) as (site, _gate), site.connect("POST", CHAT, site.user("a")):
        site.wait_for(lambda: site.engine.active)
        with site.connect("POST", CHAT, site.user("b")):
            site.wait_for(lambda: site.engine.waiting == 1)
        _, handle = site.engine.handles
        site.wait_for(lambda handle=handle: handle.cancelled)


def test_full_queue(running):
    with gated(running, capacity=1) as (site, gate), site.connect("POST", CHAT, site.user("a")) as first:
        site.wait_for(lambda: site.engine.active)
        with site.connect("POST", CHAT, site.user("b")) as second:
            site.wait_for(lambda: site.engine.waiting == 1)
            for stream in (False, True):
                status, headers, body = site.json("POST", CHAT, site.user("c", stream=stream))
                assert (status, headers["retry-after"]) == (429, "1")
                assert (body["error"]["type"], body["error"]["code"]) == ("server_error", "queue_full")
            gate.release()
            assert b'"content":"a"' in read_until(first, b"chat.completion")
            assert b'"content":"b"' in read_until(second, b"chat.completion")


def test_server_that_stops_says_so_to_those_who_wait(running, caplog):
    with gated(running) as (site, gate):
        with site.connect("POST", CHAT, site.user("abc", stream=True)) as streaming:
            gate.release(1)
            read_until(streaming, b'"content":"a"')
            with site.connect("POST", CHAT, site.user("d"), ["connection: close"]) as waiting:
                site.wait_for(lambda: site.engine.waiting == 1)
                site.engine.close(drain=False, timeout=0)
                gate.release()
                rest = read_until(streaming, b"0\r\n\r\n")
                assert b'"code":"shutting_down"' in rest
                assert b"[DONE]" not in rest
                status, _, body = site.parsed(b"".join(iter(lambda: waiting.recv(65536), b"")))
        assert (status, body["error"]["code"]) == (503, "shutting_down")
        assert not [record for record in caplog.records if record.exc_info]  # it is no failure


def test_slow_reader_does_not_hold_up_others(site):
    with site.connect("POST", CHAT, site.user("x" * 300, stream=True)):  # never reads
        assert site.json("POST", CHAT, site.user("y"))[2]["choices"][0]["message"]["content"] == "y"
