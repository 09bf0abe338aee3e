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
    """The first that can run here. Those after it are not asked: asking may import much."""
    ordered: list[tuple[int, str, BackendEntry]] = []
    failed: dict[str, str] = {}
    for entry in plugins.backends:
        try:
            ordered.append((int(resolve(entry.priority)()), entry.name, entry))
        except (ImportError, OSError, RuntimeError) as error:  # not installed, a broken library, no usable device
            failed[entry.name] = str(error)
    for priority, _, entry in sorted(ordered, key=lambda item: item[:2], reverse=True):
        reason = _unavailable(entry)
        if reason is not None:
            failed[entry.name] = reason
            continue
        if failed and priority <= LAST_RESORT:
            remedy = " or ".join(
                other.requires for other in plugins.backends if other.name in failed and other.requires
            )
            reasons = _told(plugins, failed)
            log.warning(
                "computing with %r, which is very slow; others cannot run: %s (%s)", entry.name, reasons, remedy
            )
        return entry
    reasons = _told(plugins, failed) or "none is installed"
    raise LoadError(f"no backend can run here ({reasons})", hint='pip install "hf2q[serve]"')


def _told(plugins: Plugins, failed: dict[str, str]) -> str:
    return "; ".join(f"{entry.name}: {failed[entry.name]}" for entry in plugins.backends if entry.name in failed)


def _unavailable(entry: BackendEntry) -> str | None:
    try:
        reason = resolve(entry.available)()
    except ImportError as error:  # its module needs something that is not installed
        return str(error)
    return None if reason is None else str(reason)
