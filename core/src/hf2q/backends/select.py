"""Choosing the backend that a model runs on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

from hf2q.backends.ops import Ops
from hf2q.codec import thread_count
from hf2q.errors import LoadError
from hf2q.plugins import Plugins
from hf2q.types import BackendEntry, resolve

log = logging.getLogger(__name__)

AUTO = "auto"

LAST_RESORT = 0
"""The priority of a backend that is there to compare with, and too slow to be useful."""


def select_backend(plugins: Plugins, name: str = AUTO, *, threads: int | None = None, exact: bool = False) -> Ops:
    """The backend `name`, or with "auto" the available one that puts itself first; `exact` as in `Ops`.

    Errors: UnknownNameError when no plugin provides it; LoadError when it cannot run here, with what to install.
    """
    entry = _best(plugins) if name == AUTO else plugins.backend(name)
    reason = _unavailable(entry)
    if reason is not None:
        raise LoadError(f"the backend {entry.name!r} cannot run here: {reason}", hint=entry.requires or None)
    log.info("backend %s", entry.name)
    make = cast("Callable[..., Ops]", resolve(entry.backend))
    return make(threads=thread_count(threads), exact=exact)


def ranking(plugins: Plugins) -> tuple[list[BackendEntry], list[tuple[BackendEntry, str]]]:
    """The backends that can run here, the one that "auto" takes first, and the others with the reasons."""
    usable: list[tuple[int, str, BackendEntry]] = []
    others = []
    for entry in plugins.backends:
        reason = _unavailable(entry)
        if reason is None:
            usable.append((int(resolve(entry.priority)()), entry.name, entry))
        else:
            others.append((entry, reason))
    return [entry for _, _, entry in sorted(usable, key=lambda item: item[:2], reverse=True)], others


def _best(plugins: Plugins) -> BackendEntry:
    usable, others = ranking(plugins)
    reasons = "; ".join(f"{entry.name}: {reason}" for entry, reason in others)
    if not usable:
        raise LoadError(f"no backend can run here ({reasons or 'none is installed'})", hint='pip install "hf2q[serve]"')
    best = usable[0]
    if reasons and int(resolve(best.priority)()) <= LAST_RESORT:
        remedy = " or ".join(filter(None, (entry.requires for entry, _ in others)))
        log.warning("computing with %r, which is very slow; others cannot run: %s (%s)", best.name, reasons, remedy)
    return best


def _unavailable(entry: BackendEntry) -> str | None:
    try:
        reason = resolve(entry.available)()
    except ImportError as error:  # its module needs something that is not installed
        return str(error)
    return None if reason is None else str(reason)
