"""Listening, loading and stopping: the life of ``hf2q serve`` around the application.

The socket is bound before the model is loaded, so that a port in use is known at once, and ``/health`` and
``/readyz`` answer while a large model loads. The first SIGINT or SIGTERM stops accepting and lets running answers
finish for `drain_s` seconds; then, or at a second signal, they are ended with an error that says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from litestar.types import ASGIApp

from hf2q.errors import Hf2qError, UsageError
from hf2q.serve.api.app import create_app
from hf2q.serve.api.service import Service
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.chat import Chat
from hf2q.serve.engine import Engine

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that they are the ones who close them
_GRACE_S = 5.0

Loader = Callable[[], tuple[Engine, Chat]]


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on `host` and `port`; port 0 takes a free one.

    Errors: UsageError for a host that is not an address of this machine; Hf2qError for a port that cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"host {host!r} cannot be resolved: {error}", hint="--host 127.0.0.1") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise _no_port(host, port, error) from error
    return sock


def _no_port(host: str, port: int, error: OSError) -> Hf2qError:
    if error.errno == errno.EADDRINUSE:
        return Hf2qError(f"port {port} of {host} is in use", hint="stop what uses it, or choose another with --port")
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"host {host!r} is not an address of this machine", hint="--host 127.0.0.1")
    return Hf2qError(f"cannot listen on port {port} of {host}: {error.strerror}", hint="choose another with --port")


def url(sock: socket.socket) -> str:
    """Where a listening socket is reached."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(
    sock: socket.socket,
    service: Service,
    load: Loader,
    *,
    drain_s: float,
    note: Callable[[str], None],
    settings: ApiSettings | None = None,
) -> None:
    """Serve on `sock` until a signal says to stop.

    load     makes engine and chat; called once in a thread of its own
    drain_s  seconds that running answers get after the first signal
    note     told what a person at the terminal wants to know

    Errors: what `load` raised, or what made the engine fail while it warmed up. An engine that fails later leaves the
    server running: ``/readyz`` says so.
    """
    server = _Server(create_app(service, settings), service, load, drain_s=drain_s, note=note)
    asyncio.run(server.live(sock))


class _Server(uvicorn.Server):
    """uvicorn, with signals and loading of our own."""

    def __init__(
        self, app: ASGIApp, service: Service, load: Loader, *, drain_s: float, note: Callable[[str], None]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                # a last resort: by then answers have been ended by `_cut`
                timeout_graceful_shutdown=int(drain_s + _GRACE_S),
            )
        )
        self._service = service
        self._load = load
        self._drain_s = drain_s
        self._note = note
        self._engine: Engine | None = None
        self._chat: Chat | None = None
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own handling would raise the signal again at the end: the exit code would not be 0."""
        yield

    async def live(self, sock: socket.socket) -> None:
        """Load, serve, stop."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        # a thread that ends with the process: a signal need not wait until a large model is loaded
        threading.Thread(target=self._open, args=(loop,), name="hf2q-load", daemon=True).start()
        try:
            await self.serve(sockets=[sock])
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
            self._close()
        if self._error is not None:
            raise self._error

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the loading thread."""
        error: BaseException | None = None
        opened: tuple[Engine, Chat] | None = None
        try:
            opened = self._load()
            opened[0].wait_ready()
            error = opened[0].failure
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server was stopped meanwhile
            loop.call_soon_threadsafe(self._opened, opened, error)

    def _opened(self, opened: tuple[Engine, Chat] | None, error: BaseException | None) -> None:
        if opened is not None:
            self._engine, self._chat = opened
        if error is not None:
            self._error = error
            self.should_exit = True
        elif opened is not None:
            self._service.open(*opened)
            self._note("ready")

    def _on_signal(self) -> None:
        if self.should_exit:
            self._cut()
            return
        self._service.stop()
        self.should_exit = True
        # also when nothing runs: a request that is still being read has not reached the engine
        asyncio.get_running_loop().call_later(self._drain_s, self._cut)
        if self._engine is not None and (self._engine.active or self._engine.waiting):
            self._note(
                f"finishing running answers, for at most {self._drain_s:g} s; press Ctrl-C again to end them now"
            )
        else:
            self._note("stopping")

    def _cut(self) -> None:
        """End what still runs; each of those who wait is told."""
        if self._engine is not None:
            self._engine.close(drain=False, timeout=0)

    def _close(self) -> None:
        if self._engine is not None and not self._engine.close(drain=False, timeout=_GRACE_S):
            log.warning("the engine did not stop within %g s", _GRACE_S)
        if self._chat is not None:
            self._chat.close()
