"""Loading plugins in a child process, for the commands that must work whatever a plugin does at import.

The child names each plugin before it imports it, on a pipe of its own: a plugin that hangs, ends the process, crashes
the interpreter or floods stdout is known by name. It is then recorded as failed, and a new child loads the rest, until
one of them gets through. Sits above `hf2q.plugins`; used by `hf2q plugins` and `hf2q doctor`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from hf2q.discovery import EntryPoint, check_filters, discover, labels, names_from
from hf2q.errors import PluginLoadError, UsageError
from hf2q.plugins import PluginInfo, Plugins
from hf2q.types import Record

SECONDS = 5.0
"""How long a plugin may take to load; ``HF2Q_PROBE_SECONDS`` overrides it."""
START_SECONDS = 30.0


class Problem(Record, frozen=True, kw_only=True):
    """Something wrong that is not one plugin's failure to load."""

    message: str
    hint: str | None = None


class Report(Record, frozen=True, kw_only=True):
    """What loading all plugins came to."""

    plugins: tuple[PluginInfo, ...]
    problems: tuple[Problem, ...] = ()

    @property
    def failures(self) -> tuple[PluginInfo, ...]:
        """Plugins that did not load."""
        return tuple(info for info in self.plugins if info.status == "failed")


class Started(Record, frozen=True, kw_only=True):
    """A plugin that the child is about to import."""

    name: str
    distribution: str
    version: str
    module: str

    @property
    def key(self) -> str:
        """What tells it from others."""
        return f"{self.name}={self.module}"

    def failed(self, reason: str) -> PluginInfo:
        """The record of its failure."""
        return PluginInfo(
            name=self.name,
            distribution=self.distribution,
            version=self.version,
            module=self.module,
            status="failed",
            reason=f"plugin {self.name!r} of {self.distribution} {reason}",
            hint=f"upgrade or uninstall {self.distribution}, or set HF2Q_DISABLE_PLUGINS={self.name}",
        )


def probe() -> Report:
    """Load all plugins in child processes. Never raises for what a plugin does."""
    seconds = _seconds()
    failed: dict[str, PluginInfo] = {}
    while True:
        run = _Run(seconds, failed)
        report = run.finish()
        if report is not None:
            infos = sorted((*report.plugins, *failed.values()), key=lambda info: (info.name, info.module))
            return Report(plugins=tuple(infos), problems=report.problems)
        if run.current is None or run.current.key in failed:
            problem = Problem(
                message=f"plugins could not be listed: the process that loads them {run.reason}",
                hint="python -m pip check",
            )
            return Report(plugins=tuple(failed.values()), problems=(problem,))
        failed[run.current.key] = run.current.failed(run.reason)


def _seconds() -> float:
    text = os.environ.get("HF2Q_PROBE_SECONDS", "")
    try:
        value = float(text) if text else SECONDS
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"HF2Q_PROBE_SECONDS is {text!r}, expected a positive number of seconds")
    return value


class _Run:
    """One child process. `current` is the plugin it was last at, `reason` how it ended when it did not get through."""

    def __init__(self, seconds: float, skip: Iterable[str]) -> None:
        self.seconds = seconds
        self.current: Started | None = None
        self.reason = ""
        self._pending = b""
        self._read, write = os.pipe()
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "hf2q.probe", str(write), *skip],
                pass_fds=(write,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # so that whatever it starts can be ended with it
            )
        finally:
            os.close(write)

    def finish(self) -> Report | None:
        """Follow the child to its end. Returns its report, or None when it did not get that far."""
        try:
            for message in self._messages():
                if "report" in message:
                    return msgspec.convert(message["report"], Report)
                if "raised" in message:
                    self.reason = f"raised {message['raised']} while it loaded"
                    return None
                self.current = msgspec.convert(message["start"], Started)
            return None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            os.close(self._read)

    def _messages(self) -> Iterable[dict[str, Any]]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            limit = time.monotonic() + START_SECONDS
            while True:
                left = limit - time.monotonic()
                if left <= 0 or not selector.select(left):
                    spent = self.seconds if self.current else START_SECONDS
                    self.reason = f"did not finish loading within {spent:g} s"
                    return
                data = os.read(self._read, 1 << 16)
                if not data:
                    self.reason = _ending(self._child)
                    return
                *lines, self._pending = (self._pending + data).split(b"\n")
                for line in lines:
                    yield json.loads(line)
                    limit = time.monotonic() + self.seconds


def _ending(child: subprocess.Popen[bytes]) -> str:
    try:
        code = child.wait(1.0)
    except subprocess.TimeoutExpired:
        return "closed the files of the process that loads it"
    if code < 0:
        return f"crashed the process that loads it ({signal.Signals(-code).name})"
    return f"ended the process that loads it, with exit status {code}"


# ------------------------------------------------------------------------------------------------ inside the child


def child(pipe: int, skip: Iterable[str]) -> None:
    """Load all plugins but those in `skip`, telling `pipe` before each and at the end."""

    def send(kind: str, value: object) -> None:
        os.write(pipe, msgspec.json.encode({kind: value}) + b"\n")

    def before(point: EntryPoint) -> None:
        send("start", _started(point))

    try:
        left = set(skip)
        send("report", _load([point for point in discover() if f"{point.name}={point.value}" not in left], before))
    except BaseException as error:
        send("raised", f"{type(error).__name__}: {error}".removesuffix(": "))


def _started(point: EntryPoint) -> Started:
    dist = point.dist
    return Started(
        name=point.name,
        distribution=str(dist.name) if dist is not None else "",
        version=str(dist.version) if dist is not None else "",
        module=point.value,
    )


def _load(points: list[EntryPoint], before: Any) -> Report:
    problems = []
    only = names_from(os.environ.get("HF2Q_PLUGINS") or None)
    try:
        check_filters(discover(), only, frozenset())
    except PluginLoadError as error:
        problems.append(Problem(message=error.message, hint=error.hint))
    if only is not None:  # without the names that would be refused: what is there is still to be shown
        only &= frozenset().union(*(labels(point) for point in points))
    plugins = Plugins.load(only=only, strict=False, entry_points=points, before=before)
    problems += [Problem(message=clash.message, hint=clash.hint) for clash in plugins.clashes]
    return Report(plugins=plugins.infos, problems=tuple(problems))


if __name__ == "__main__":
    child(int(sys.argv[1]), sys.argv[2:])
    os._exit(0)  # without waiting for threads that a plugin may have started
