"""``hf2q serve --selftest``: beside the server of this process, a client of it.

When the models are ready it checks each of them over HTTP, ends the server as SIGTERM would, and has the verdicts.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, NamedTuple

from hf2q.cli.output import print_json
from hf2q.errors import Hf2qError

if TYPE_CHECKING:
    from hf2q.serve.api.service import Service
    from hf2q.serve.selftest import Verdict

FAILED = 2
"""The exit code when a check failed."""


class SelftestOptions(NamedTuple):
    """key: an API key, where the server wants one; json: print the verdicts as JSON."""

    key: str | None
    json: bool


def begin(base: str, service: Service, options: SelftestOptions) -> Selftest:
    """Check the models of `service` as soon as they are ready, over HTTP at `base`; call before the server runs."""
    test = Selftest(base, service, options)
    test.begin()
    return test


class Selftest:
    """The self-test of a server that runs in this process."""

    def __init__(self, base: str, service: Service, options: SelftestOptions) -> None:
        self._base = base.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        self._service = service
        self._options = options
        self._found: dict[str, list[Verdict]] = {}
        self._complete = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hf2q-selftest", daemon=True)

    def begin(self) -> None:
        """Wait for the server and check it, in a thread."""
        self._thread.start()

    def finish(self) -> int:
        """Print the verdicts on stdout, and return the exit code: 0, or `FAILED`.

        Errors: Hf2qError when the server ended before all was checked.
        """
        from hf2q.serve.selftest import as_json, passed, table

        self._over.set()
        self._thread.join(timeout=1.0)
        if not self._complete:
            raise Hf2qError("the server ended before the self-test was over")
        if self._options.json:
            print_json([as_json(model, verdicts) for model, verdicts in self._found.items()])
        else:
            for model, verdicts in self._found.items():
                print(f"self-test of {model}\n{table(verdicts)}")
        return 0 if all(passed(verdicts) for verdicts in self._found.values()) else FAILED

    def _work(self) -> None:
        from hf2q.serve.api.pool import State
        from hf2q.serve.api.service import told
        from hf2q.serve.selftest import Verdict, run

        initial = [member for member in self._service.pool.members if member.file.initial]
        while not all(member.state in (State.READY, State.FAILED) for member in initial):
            if self._over.wait(0.02):
                return
        try:
            for member in initial:
                if member.loaded is None:
                    verdicts = [Verdict("server", "the model is loaded", "FAIL", told(member), 0.0)]
                else:
                    embeds = member.loaded.engine is None
                    key = self._options.key
                    verdicts = run(self._base, member.file.id, key=key, embeds=embeds, on_verdict=self._tell)
                self._found[member.file.id] = verdicts
            self._complete = True
        finally:
            if not self._over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    @staticmethod
    def _tell(verdict: Verdict) -> None:
        if sys.stderr.isatty():
            print(f"{verdict.result}  {verdict.area}: {verdict.name}", file=sys.stderr)
