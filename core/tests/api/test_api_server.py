"""The life of a server in a process of its own: signals, loading, ports."""

import http.client
import json
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from hf2q.errors import Hf2qError, UsageError
from hf2q.serve.api.server import listen, url

PROGRAM = """
import sys, time
from hf2q.cli.exits import guarded
from hf2q.serve.api import server
from hf2q.serve.api.service import Service
from hf2q.serve.chat import open_chat
from hf2q.serve.engine import Engine
from hf2q.errors import LoadError
from hf2q.testing.scripted import scripted_model

step, loading, drain, fault = float(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]

def before(rows, tokens):
    if fault == "warm-up":
        raise RuntimeError("no device")
    time.sleep(step)

def load():
    time.sleep(loading)
    if fault == "load":
        raise LoadError("the file is broken", hint="make a new one")
    model = scripted_model("x" * 50, before=before)
    return Engine(model), open_chat(model)

def work():
    sock = server.listen("127.0.0.1", 0)
    print(server.url(sock), flush=True)
    server.run(sock, Service("scripted"), load, drain_s=drain, note=lambda text: print(text, flush=True))
    return 0

sys.exit(guarded(work, []))
"""


@contextmanager
def server(*, step=0.0, loading=0.0, drain=10.0, fault="", ready=True):
    arguments = [sys.executable, "-c", PROGRAM, str(step), str(loading), str(drain), fault]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        process.port = int(process.stdout.readline().rpartition(":")[2])
        process.connections = []
        if ready:
            assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()
        for connection in process.connections:
            connection.close()


def ask(process, *request):
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=30)
    process.connections.append(connection)
    connection.request(*request)
    return connection


def post(process, **more):
    asked = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], **more}
    return ask(process, "POST", "/v1/chat/completions", json.dumps(asked), {"content-type": "application/json"})


def get(process, path):
    return ask(process, "GET", path).getresponse()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_while_idle(number):
    with server() as process:
        assert get(process, "/readyz").status == 200
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, output, errors) == (0, "stopping\n", "")


def test_running_answers_finish():
    with server(step=0.01) as process:
        connection = post(process, stream=True)
        response = connection.getresponse()
        response.readline()
        process.send_signal(signal.SIGTERM)
        body = response.read().decode()
        assert body.endswith("data: [DONE]\n\n")
        assert body.count('"content":"x"') == 50
        assert process.wait(timeout=20) == 0
        with pytest.raises(ConnectionRefusedError):
            get(process, "/health")


@pytest.mark.parametrize("how", ["time is up", "second signal"])
def test_answers_that_do_not_finish_are_told(how):
    with server(step=0.2, drain=0.3 if how == "time is up" else 60) as process:
        streaming = post(process, stream=True).getresponse()
        streaming.readline()
        unary = post(process)
        process.send_signal(signal.SIGINT)
        assert "finishing running answers" in process.stdout.readline()
        if how == "second signal":
            process.send_signal(signal.SIGINT)
        body = streaming.read().decode()
        assert '"code":"shutting_down"' in body
        assert "[DONE]" not in body
        assert unary.getresponse().status == 503
        assert process.wait(timeout=20) == 0


def test_health_while_loading_and_a_signal_then():
    with server(loading=60, ready=False) as process:
        assert get(process, "/health").status == 200
        assert get(process, "/readyz").status == 503
        assert post(process).getresponse().status == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


@pytest.mark.parametrize(
    ("fault", "message"), [("load", "error: the file is broken\nhint: make a new one\n"), ("warm-up", "no device")]
)
def test_model_that_cannot_be_loaded_ends_the_server(fault, message):
    with server(fault=fault, ready=False) as process:
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 1
        assert message in errors


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
    if socket.has_ipv6:
        try:
            with listen("::1", 0) as sock:
                assert url(sock) == f"http://[::1]:{sock.getsockname()[1]}"
        except Hf2qError:
            pytest.skip("no IPv6 here")
