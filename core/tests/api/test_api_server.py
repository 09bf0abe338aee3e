"""The life of a server in a process of its own: signals, loading, ports."""

import signal
import socket

import pytest
from processes import ask, get, post, said, server

from hf2q.errors import Hf2qError, UsageError
from hf2q.serve.api.listening import is_loopback, listen, only_this_machine, url


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_while_idle(number):
    with server() as process:
        assert get(process, "/readyz").status == 200
        process.send_signal(number)
        assert process.wait(timeout=60) == 0
        said(process, "stopping")
        assert (process.lines, process.stderr.read()) == (["ready", "stopping"], "")


def test_running_answers_finish():
    with server(step=0.01) as process:
        connection = post(process, stream=True)
        response = connection.getresponse()
        response.readline()
        process.send_signal(signal.SIGTERM)
        body = response.read().decode()
        assert body.endswith("data: [DONE]\n\n")
        assert body.count('"content":"x"') == 50
        assert process.wait(timeout=60) == 0
        with pytest.raises(ConnectionRefusedError):
            get(process, "/health")


@pytest.mark.parametrize("how", ["time is up", "second signal"])
def test_answers_that_do_not_finish_are_told(how):
    with server(step=0.2, drain=0.3 if how == "time is up" else 60) as process:
        streaming = post(process, stream=True).getresponse()
        streaming.readline()
        unary = post(process)
        process.send_signal(signal.SIGINT)
        said(process, "finishing running answers")
        if how == "second signal":
            process.send_signal(signal.SIGINT)
        body = streaming.read().decode()
        assert '"code":"shutting_down"' in body
        assert "[DONE]" not in body
        assert unary.getresponse().status == 503
        assert process.wait(timeout=60) == 0


def test_shutdown_over_http():
    with server(step=0.01) as process:
        response = post(process, stream=True).getresponse()
        response.readline()
        answer = ask(process, "POST", "/shutdown").getresponse()
        body = answer.read()
        assert answer.status == 202
        assert f'"pid":{process.pid}'.encode() in body
        assert b'"status":"accepted"' in body
        assert b'"active":1' in body
        assert response.read().decode().endswith("data: [DONE]\n\n")  # the same drain as a signal's
        assert process.wait(timeout=60) == 0


def test_health_while_loading_and_a_signal_then():
    with server(loading=60, wait=False) as process:
        assert get(process, "/health").status == 200
        response = get(process, "/readyz")
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert post(process).getresponse().status == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("fault", "message"), [("load", "error: the file is broken\nhint: make a new one\n"), ("warm-up", "no device")]
)
def test_model_that_cannot_be_loaded_ends_the_server(fault, message):
    with server(fault=fault, wait=False) as process:
        assert process.wait(timeout=60) == 1
        assert message in process.stderr.read()


def test_port_in_use():
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(Hf2qError, match=f"port {port} of 127.0.0.1 is in use") as caught:
            listen("127.0.0.1", port)
        assert caught.value.exit_code == 1
        assert "--port" in caught.value.hint


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "a" * 300])
def test_wrong_host(host):
    with pytest.raises(UsageError, match="host"):
        listen(host, 0)


def test_urls():
    with listen("127.0.0.1", 0) as sock:
        assert url(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
        assert only_this_machine(sock)
    with listen("0.0.0.0", 0) as sock:
        assert not only_this_machine(sock)
    if socket.has_ipv6:
        try:
            with listen("::1", 0) as sock:
                assert url(sock) == f"http://[::1]:{sock.getsockname()[1]}"
                assert only_this_machine(sock)
        except Hf2qError:
            pytest.skip("no IPv6 here")


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),
        ("192.168.1.5", False),
        ("fe80::1%eth0", False),
        ("localhost", False),
        (None, False),
    ],
)
def test_what_is_this_machine_alone(address, is_one):
    assert is_loopback(address) is is_one
