"""A real HTTP server on the loopback interface, over a model that says what its script wants.

Unless a test says otherwise the model answers with the text of the last user message, so a test asks for what it
wants to see.
"""

import json
import re
import socket
import threading
import time
from contextlib import contextmanager

import uvicorn

from hf2q.serve.api.app import create_app
from hf2q.serve.api.compute import Compute
from hf2q.serve.api.connection import connections
from hf2q.serve.api.lease import Loaded
from hf2q.serve.api.pool import Pool
from hf2q.serve.api.registered import ModelFile
from hf2q.serve.api.server import listen, url
from hf2q.serve.api.service import Service
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.chat import open_chat
from hf2q.serve.engine import Engine
from hf2q.testing.scripted import TEMPLATE, scripted_model

THINKING = TEMPLATE + "{% if add_generation_prompt and enable_thinking %}<think>\n{% endif %}"


def echo(conversation):
    """What the user said last."""
    return re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", conversation, re.DOTALL)[-1]


class Site:
    """A running server, and what is behind it."""

    def __init__(self, service, engine, base):
        self.service, self.engine, self.base = service, engine, base
        host, _, port = base.removeprefix("http://").partition(":")
        self.address = (host, int(port))

    @property
    def steps(self):
        """Calls of the model so far."""
        return len(self.engine.model._graph.calls)

    def raw(self, method, path, body=b"", headers=()):
        """Send a request over a bare socket and return all that comes back until the server closes it."""
        with self.connect(method, path, body, (*headers, "connection: close")) as sock:
            return b"".join(iter(lambda: sock.recv(65536), b""))

    def connect(self, method, path, body=b"", headers=(), *, host="x"):
        """Send a request over a bare socket and return the socket."""
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers = (*headers, "content-type: application/json")
        named = [] if host is None else [f"host: {host}"]
        lines = [f"{method} {path} HTTP/1.1", *named, f"content-length: {len(body)}", *headers, "", ""]
        sock = socket.create_connection(self.address, timeout=30)
        sock.sendall("\r\n".join(lines).encode() + body)
        return sock

    def json(self, method, path, body=b"", headers=()):
        """Status, headers and decoded body of one request."""
        return self.parsed(self.raw(method, path, body, headers))

    @staticmethod
    def parsed(response):
        """Status, headers (lower case) and body of a response with a content-length."""
        head, _, body = response.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split()[1]), headers, json.loads(body) if body else None

    @staticmethod
    def user(text, **more):
        """A chat request with one message."""
        return {"model": "scripted", "messages": [{"role": "user", "content": text}], **more}

    @staticmethod
    def wait_for(condition, seconds=60):
        """Wait until `condition()` holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.005)


@contextmanager
def serving(
    reply=echo,
    *,
    capacity=32,
    slots=4,
    settings=None,
    opened=True,
    chat_template=THINKING,
    metadata=None,
    change=None,
    beside=(),
    **model,
):
    """A server over a scripted model; `change` may do something to that before it is served. `beside` it are models
    that generate nothing.
    """
    made = scripted_model(reply, chat_template=chat_template, **model)
    made.metadata.update(metadata or {})
    if change is not None:
        change(made)
    file = ModelFile(id=model.get("name", made.name), path=made.path, initial=True)
    others = {f"beside-{number}": other for number, other in enumerate(beside)}
    files = [file, *(ModelFile(id=id, path=other.path, task="embed", initial=True) for id, other in others.items())]

    def load(wanted):
        return Loaded(others[wanted.id]) if wanted.id in others else Loaded(made, engine, chat)

    service = Service(Pool(files, load))
    compute = Compute()
    app = create_app(service, settings or ApiSettings(), compute=compute)
    sock = listen("127.0.0.1", 0)
    kind = connections(settings or ApiSettings())
    config = uvicorn.Config(
        app, log_config=None, lifespan="off", access_log=False, ws="none", http=kind, server_header=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    chat = open_chat(made)
    with Engine(made, slots=slots, queue_capacity=capacity, observer=service.watchers.observer(file.id)) as engine:
        engine.wait_ready()
        if opened:
            for job in service.start():
                job.result()
        thread.start()
        site = Site(service, engine, url(sock))
        site.compute, site.listener = compute, sock
        try:
            yield site
        finally:
            engine.close(drain=False)
            server.should_exit = True
            thread.join()
            chat.close()
