"""Servers over scripted models in processes of their own, for tests of signals, crashes and logs.

Run as a program it is such a server; its arguments are those of `server` below, as one JSON object.
"""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def server(*, wait=True, stderr=subprocess.PIPE, env=None, **wanted):
    """A server process: `port`, and what it has written on stdout so far is in `lines`.

    step       seconds of each piece of work;  block  a file: while it exists, work stands still
    loading    seconds of loading;  fault  "load", "warm-up" or "device" (the first request breaks the engine)
    drain      seconds;  deadline  of the watchdog
    supervise  run it under a supervisor;  settings  fields of ApiSettings
    models     names, default one;  demand  loaded on demand, and how many fit
    """
    arguments = [sys.executable, __file__, json.dumps(wanted)]
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, **(env or {})}
    )
    process.connections, process.lines = [], []
    try:
        process.port = int(process.stdout.readline().rpartition(":")[2])
        reader = process.reader = threading.Thread(target=_read, args=(process,), daemon=True)
        reader.start()
        if wait:
            said(process, "ready")
        yield process
    finally:
        process.terminate()
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(5)
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()
        for connection in process.connections:
            connection.close()


def _read(process):
    for line in process.stdout:
        process.lines.append(line.rstrip("\n"))


def said(process, wanted, count=1, seconds=60):
    """Wait until a line that holds `wanted` has come `count` times; return the last."""
    end = time.monotonic() + seconds
    while True:
        over = process.poll() is not None
        if over:
            process.reader.join(5)  # what it said last is there then
        found = [line for line in list(process.lines) if wanted in line]
        if len(found) >= count:
            return found[count - 1]
        assert not over, f"it ended with {process.returncode} and has not said {wanted!r}: {process.lines}"
        assert time.monotonic() < end, f"{wanted!r} was not said: {process.lines}"
        time.sleep(0.01)


def ask(process, *request, timeout=30):
    """Send a request; the connection, to be asked for its response."""
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=timeout)
    process.connections.append(connection)
    connection.request(*request)
    return connection


def post(process, text="hi", *, model="scripted", **more):
    """Ask for a chat completion."""
    asked = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    return ask(process, "POST", "/v1/chat/completions", json.dumps(asked), {"content-type": "application/json"})


def get(process, path):
    """The response to a GET."""
    return ask(process, "GET", path).getresponse()


def main():
    """Serve."""
    from hf2q.cli.exits import guarded

    wanted = json.loads(sys.argv[1])
    sys.exit(guarded(lambda: _serve(**wanted), []))


def _serve(
    *,
    step=0.0,
    block=None,
    loading=0.0,
    fault="",
    drain=10.0,
    deadline=None,
    supervise=False,
    settings=None,
    models=("scripted",),
    demand=0,
    reply="x" * 50,
    log=None,
):
    from hf2q.serve.api.listening import listen, url
    from hf2q.serve.api.supervisor import Supervisor, inherited

    child = inherited()
    sock, lifeline = child or (listen("127.0.0.1", 0), None)
    if child is None:
        _note(url(sock))
    if supervise and child is None:
        return Supervisor(sys.orig_argv, sock, note=_note, first_s=0.05).run()
    from hf2q.serve.api import server
    from hf2q.serve.api.settings import ApiSettings

    if log is not None:
        from hf2q.cli.logs import configure
        from hf2q.cli.settings import Settings

        configure(Settings(log_format=log, verbose=1))
    service = _service(step, block, loading, fault, deadline, models, demand, reply)
    service.supervised = lifeline is not None
    return server.run(
        sock, service, drain_s=drain, note=_note, settings=ApiSettings(**settings or {}), lifeline=lifeline
    )


def _service(step, block, loading, fault, deadline, models, demand, reply):
    from hf2q.errors import LoadError
    from hf2q.serve.api.lease import Loaded
    from hf2q.serve.api.pool import Pool
    from hf2q.serve.api.registered import ModelFile
    from hf2q.serve.api.service import Service
    from hf2q.serve.api.watching import Watchers
    from hf2q.serve.chat import open_chat
    from hf2q.serve.engine import Engine
    from hf2q.serve.model import WARM_UP_TOKENS
    from hf2q.testing.scripted import scripted_model

    watchers = Watchers()

    def before(rows, tokens):
        if fault == "warm-up" or (fault == "device" and tokens > WARM_UP_TOKENS):
            raise RuntimeError("no device")
        time.sleep(step)
        while block and Path(block).exists():
            time.sleep(0.02)

    def load(file):
        time.sleep(loading)
        if fault == "load":
            raise LoadError("the file is broken", hint="make a new one")
        model = scripted_model(reply, before=before, name=file.id)
        options = {} if deadline is None else {"deadline": deadline}
        engine = Engine(model, observer=watchers.observer(file.id), **options)
        if not engine.wait_ready():
            raise engine.failure
        return Loaded(model, engine, open_chat(model))

    files = [ModelFile(id=name, path=Path(f"{name}.gguf"), initial=not demand, nbytes=100) for name in models]
    pool = Pool(files, load, max_models=demand or len(files))
    return Service(pool, watchers=watchers, on_demand=bool(demand))


def _note(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
