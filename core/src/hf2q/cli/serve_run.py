"""Running what ``hf2q serve`` was asked for, once its options are understood."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf2q.cli.logs import in_background, notice, writes_json
from hf2q.cli.selftest import SelftestOptions, begin
from hf2q.errors import UsageError, listing

if TYPE_CHECKING:
    from hf2q.serve.api.opening import EngineOptions
    from hf2q.serve.api.registered import ModelFile
    from hf2q.serve.api.settings import ApiSettings
    from hf2q.serve.api.supervisor import Lifeline
    from hf2q.serve.operator import Kind

_SHARE = 0.8
"""Of the memory that is free, what models may take unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What to serve and how.

    files       that may be served;  on_demand  loaded when they are asked for;  options  how they are run
    max_models, memory_budget  in memory together; None: `_SHARE` of what is free
    settings    of HTTP;  drain  seconds for running answers at the end
    lifeline    to the supervisor of this process, if there is one
    """

    files: tuple[ModelFile, ...]
    on_demand: bool
    options: EngineOptions
    max_models: int
    memory_budget: int | None
    settings: ApiSettings
    drain: float
    lifeline: Lifeline | None
    operator_ui: Kind
    checks: SelftestOptions | None


def supervised(sock: socket.socket) -> int:
    """Run this same program again as a child that serves on `sock`, as often as it takes."""
    from hf2q.serve.api.supervisor import Supervisor

    if not any("--supervise" in word for word in sys.orig_argv):
        raise UsageError("--supervise is for the program hf2q, not for a part of another")
    return Supervisor(sys.orig_argv, sock, note=notice).run()


def serve(sock: socket.socket, wanted: Serving) -> int:
    """Serve until told to stop; the exit code."""
    from hf2q.serve.api.listening import url
    from hf2q.serve.api.opening import opener
    from hf2q.serve.api.pool import Pool
    from hf2q.serve.api.watching import Watchers
    from hf2q.serve.operator import Plain, open_operator

    watchers = Watchers()
    budget = _memory() if wanted.memory_budget is None else wanted.memory_budget
    load = opener(wanted.options, watchers)
    pool = Pool(wanted.files, load, max_models=wanted.max_models, budget=budget)
    view = open_operator(wanted.operator_ui, sys.stderr, json_logs=writes_json(), note=notice)
    view.watch(watchers.add)
    view.title = f"{_what([file.id for file in wanted.files])} on {url(sock)}"
    with in_background() if isinstance(view, Plain) else nullcontext(), view:
        pool.start()  # while the packages for HTTP are imported
        from hf2q.serve.api import server
        from hf2q.serve.api.service import Service

        service = Service(pool, watchers=watchers, on_demand=wanted.on_demand, supervised=wanted.lifeline is not None)
        each = " each" if len(wanted.files) > 1 else ""
        view.note(f"serving {view.title} with {wanted.options.slots} slots{each}")
        test = None if wanted.checks is None else begin(url(sock), service, wanted.checks)
        code = server.run(
            sock,
            service,
            drain_s=wanted.drain,
            note=view.note,
            settings=wanted.settings,
            lifeline=wanted.lifeline,
        )
    return code if test is None else test.finish()


def _what(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{len(ids)} models ({listing(ids)})"


def _memory() -> int | None:
    from hf2q.backends.memory import available_memory

    free = available_memory()
    return None if free is None else int(free * _SHARE)
