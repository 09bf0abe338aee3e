"""A small parent that keeps a server alive: it holds the listening socket, and starts the server again when it dies.

The server is a child that inherits the socket, so that clients find the port open, and wait, while a new one starts.
Parent and child talk over a socket pair: the child says that it is ready, and that it still moves (its event loop
does); when the parent goes away, the child sees the end of the stream and stops. Imports nothing heavy.

    the child ends with 0, or after a signal that the parent passed on    so does the parent
    it ends with a code before it was ever ready                          so does the parent: that will not get better
    it dies, ends with POISONED, or does not move for `STILL_S` seconds   it is started again, a little later each time
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType

VARIABLE = "HF2Q_SERVE_SOCKET"
"""Tells a child the numbers of its listening socket and of its end of the pair: ``3:4``."""

POISONED = 75
"""What a child ends with whose engine has failed: only a new process can serve. Source: sysexits.h, EX_TEMPFAIL."""

READY, ALIVE = b"R", b"."
BEAT_S = 5.0
STILL_S = 120.0

LIMIT = 5
WINDOW_S = 600.0
"""A server that had to be started again `LIMIT` times within so many seconds is given up."""

_FIRST_S, _LONGEST_S = 0.25, 30.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """Runs `command` with the listening socket `sock` until it ends for good.

    command  program and arguments;  note  told what a person at the terminal wants to know
    first_s  seconds before the first restart; each further one within `WINDOW_S` takes twice as long
    """

    def __init__(
        self, command: Sequence[str], sock: socket.socket, *, note: Callable[[str], None], first_s: float = _FIRST_S
    ) -> None:
        self._command = list(command)
        self._sock = sock
        self._note = note
        self._first_s = first_s
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping: list[int] = []
        self._restarts: deque[float] = deque()

    def run(self) -> int:
        """The exit code."""
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            while True:
                code, was_ready = self._live()
                if code == 0 or self._stopping:
                    return code if code >= 0 else 128 - code
                if code > 0 and code != POISONED and not was_ready:
                    return code
                if not self._again(code):
                    return 1
                if self._stopping:
                    return 0
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._sock.close()

    def _live(self) -> tuple[int, bool]:
        """One life of the child: how it ended (minus the signal that killed it), and whether it was ever ready."""
        ours, its = socket.socketpair()
        with ours:
            with its:
                numbers = (self._sock.fileno(), its.fileno())
                self._child = subprocess.Popen(
                    self._command,
                    executable=sys.executable,
                    env={**os.environ, VARIABLE: f"{numbers[0]}:{numbers[1]}"},
                    pass_fds=numbers,
                    process_group=0,  # Ctrl-C reaches this process alone, which passes it on once
                )
            for number in self._stopping:  # came while the child was being made
                self._pass_on(number)
            was_ready = self._watch(self._child, ours)
        return self._child.wait(), was_ready

    def _watch(self, child: subprocess.Popen[bytes], pair: socket.socket) -> bool:
        was_ready = False
        heard = time.monotonic()
        while child.poll() is None:
            if select.select([pair], [], [], 1.0)[0]:
                said = pair.recv(4096)
                if not said:  # it is ending
                    break
                heard = time.monotonic()
                was_ready = was_ready or READY in said
            elif was_ready and time.monotonic() - heard > STILL_S:
                self._note(f"the server (process {child.pid}) has not moved for {STILL_S:g} s")
                child.kill()
        return was_ready

    def _again(self, code: int) -> bool:
        """Wait before the next start; False when there have been too many."""
        now = time.monotonic()
        while self._restarts and now - self._restarts[0] > WINDOW_S:
            self._restarts.popleft()
        how = _ending(code)
        if len(self._restarts) >= LIMIT:
            often = f"{LIMIT} times in {WINDOW_S / 60:g} minutes"
            self._note(f"the server {how}; it had to be started again {often}: giving up")
            return False
        wait = min(_LONGEST_S, self._first_s * 2 ** len(self._restarts))
        self._restarts.append(now)
        self._note(f"the server {how}; starting it again in {wait:g} s")
        end = now + wait
        while time.monotonic() < end and not self._stopping:
            time.sleep(min(0.05, wait))
        return True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._stopping:
            self._sock.close()  # nobody shall wait for a server that does not come again
        self._stopping.append(number)
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        child = self._child
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)


def _ending(code: int) -> str:
    if code == POISONED:
        return "has a broken engine"
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"ended with code {code}"


class Lifeline:
    """A child's end of the pair."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        pair.setblocking(False)

    def fileno(self) -> int:
        """For an event loop: it can be read when the parent is gone."""
        return self._pair.fileno()

    def ready(self) -> None:
        """Requests are taken from now on."""
        self._say(READY)

    def alive(self) -> None:
        """The event loop moves; to be said every `BEAT_S` seconds."""
        self._say(ALIVE)

    def _say(self, what: bytes) -> None:
        try:
            self._pair.send(what)
        except OSError:  # the parent is gone, or so busy that it will hear the next
            return


def inherited() -> tuple[socket.socket, Lifeline] | None:
    """The sockets of a child, or None in a process that is none. Its own children will not see them."""
    told = os.environ.pop(VARIABLE, "")
    listening, colon, pair = told.partition(":")
    if not (colon and listening.isdecimal() and pair.isdecimal()):
        return None
    sockets = socket.socket(fileno=int(listening)), socket.socket(fileno=int(pair))
    for each in sockets:
        each.set_inheritable(False)
    return sockets[0], Lifeline(sockets[1])
