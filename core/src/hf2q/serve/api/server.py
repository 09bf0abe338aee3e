"""The life of ``hf2q serve`` around the application: loading, listening, stopping.

The socket is there before any model is loaded, so ``/health`` and ``/readyz`` answer while a large one loads. The
first SIGINT, SIGTERM or ``POST /shutdown`` stops accepting and lets running answers finish for `drain_s` seconds; then,
or at a second signal, they are ended with an error that says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import uvicorn
from litestar.types import ASGIApp

from hf2q.serve.api.app import create_app
from hf2q.serve.api.connection import connections
from hf2q.serve.api.listening import BACKLOG, listen, url
from hf2q.serve.api.pool import wait_for
from hf2q.serve.api.service import Service
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.api.supervisor import BEAT_S, POISONED, Lifeline

__all__ = ["listen", "run", "url"]

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that they are the ones who close them
_GRACE_S = 5.0
_LOOK_S = 0.25
_POISON_S = 2.0


def run(
    sock: socket.socket,
    service: Service,
    *,
    drain_s: float,
    note: Callable[[str], None],
    settings: ApiSettings | None = None,
    lifeline: Lifeline | None = None,
) -> int:
    """Serve on `sock` until a signal says to stop; returns the exit code.

    drain_s   seconds that running answers get after the first signal
    note      told what a person at the terminal wants to know
    lifeline  to the supervisor, where there is one: then an engine that fails ends the server with code
              `hf2q.serve.api.supervisor.POISONED`, once its requests have been told. Without, the server runs on, and
              ``/readyz`` says what is wrong

    Errors: what loading raised, when none of the models that are there from the start could be loaded.
    """
    settings = settings or ApiSettings()
    server = _Server(create_app(service, settings), service, settings, drain_s=drain_s, note=note, lifeline=lifeline)
    try:
        asyncio.run(server.live(sock))
    finally:
        server.over()
    if server.error is not None:
        raise server.error
    return server.code


class _Server(uvicorn.Server):
    """uvicorn, with signals and loading of our own."""

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        settings: ApiSettings,
        *,
        drain_s: float,
        note: Callable[[str], None],
        lifeline: Lifeline | None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=connections(settings),
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                # a last resort: by then answers have been ended by `_cut`
                timeout_graceful_shutdown=int(drain_s + _GRACE_S),
            )
        )
        self.error: BaseException | None = None
        self.code = 0
        self._service = service
        self._drain_s = drain_s
        self._note = note
        self._lifeline = lifeline
        self._deadline: threading.Timer | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own handling would raise the signal again at the end: the exit code would not be 0."""
        yield

    async def live(self, sock: socket.socket) -> None:
        """Load, serve, stop."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        self._service.stop_soon = self._on_signal
        tasks = [asyncio.ensure_future(self._load(self._service.start()))]
        if self._lifeline is not None:
            loop.add_reader(self._lifeline.fileno(), self._on_parent_gone)
            tasks += [asyncio.ensure_future(self._beat()), asyncio.ensure_future(self._look())]
        try:
            await self.serve(sockets=[sock])
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._hurry()
            self._service.pool.close()

    async def _load(self, jobs: Sequence[Future[None]]) -> None:
        """See the models loaded that are there from the start; say so when the first is ready."""
        told, first = False, None
        if not jobs:
            self._ready()
        initial = [member for member in self._service.pool.members if member.file.initial]
        for member, job in zip(initial, jobs, strict=True):
            await wait_for(job)
            error = job.exception()
            if error is None and not told:
                told = True
                self._ready()
            elif error is not None:
                first = first or error
                if len(jobs) > 1 or self._service.on_demand:
                    log.error("the model %s cannot be loaded: %s", member.file.id, error)
        if told or not jobs:
            return
        if self._service.on_demand:
            self._service.give_up_waiting()
            self._ready()
        else:
            self.error = first
            self.should_exit = True

    def _ready(self) -> None:
        self._note("ready")
        if self._lifeline is not None:
            self._lifeline.ready()

    def _on_signal(self) -> None:
        if self.should_exit:
            self._cut()
            return
        self._service.stop()
        self.should_exit = True
        # also when nothing runs: a request that is still being read has not reached the engine
        asyncio.get_running_loop().call_later(self._drain_s, self._cut)
        if self._service.busy:
            self._note(
                f"finishing running answers, for at most {self._drain_s:g} s; press Ctrl-C again to end them now"
            )
        else:
            self._note("stopping")

    def _on_parent_gone(self) -> None:
        if self._lifeline is not None:
            asyncio.get_running_loop().remove_reader(self._lifeline.fileno())
        log.warning("the supervisor is gone")
        if not self.should_exit:
            self._on_signal()

    def _cut(self) -> None:
        """End what still runs; each of those who wait is told."""
        self._service.cut()

    async def _beat(self) -> None:
        while self._lifeline is not None:
            self._lifeline.alive()
            await asyncio.sleep(BEAT_S)

    async def _look(self) -> None:
        """End the process for the supervisor when an engine has failed, after those who wait were told."""
        while self._service.poisoned is None:
            await asyncio.sleep(_LOOK_S)
        log.error("an engine has failed; the process ends, to be started again: %s", self._service.poisoned)
        self.code = POISONED
        loop = asyncio.get_running_loop()
        end = loop.time() + _POISON_S
        await asyncio.sleep(_LOOK_S)
        while self._service.busy and loop.time() < end:
            await asyncio.sleep(_LOOK_S)
        self._service.stop()
        self._cut()
        self._hurry(self._drain_s)
        self.should_exit = True

    def _hurry(self, more_s: float = 0.0) -> None:
        """See that the process ends, whatever hangs: a thread that is stuck in a device must not keep it."""
        if self._deadline is None:
            code = self.code if self.error is None else 1
            self._deadline = threading.Timer(more_s + 2 * _GRACE_S + 1, os._exit, (code,))
            self._deadline.daemon = True
            self._deadline.start()

    def over(self) -> None:
        """Everything has ended."""
        if self._deadline is not None:
            self._deadline.cancel()
