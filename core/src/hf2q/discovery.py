"""Finding plugins: entry points of the group ``hf2q``, and the lists of names that let them through or not.

Reads installed metadata only and imports no plugin. Sits below `hf2q.plugins`, which loads what is found here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any, Protocol, cast

from hf2q.errors import PluginLoadError, listing
from hf2q.installed import Distribution, distributions
from hf2q.types import Record

log = logging.getLogger(__name__)
GROUP = "hf2q"
BUILTIN = "builtin"
"""Name of core's own plugin."""


class EntryPoint(Protocol):
    """What is used of an entry point, `hf2q.installed`'s or importlib-metadata's."""

    name: str
    value: str

    @property
    def dist(self) -> Any: ...


def normalized(name: str) -> str:
    """A distribution or plugin name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names_from(text: str | None) -> frozenset[str] | None:
    """Parse a comma-separated allow or deny list; None stays None, an empty text is an empty list."""
    if text is None:
        return None
    return frozenset(normalized(part.strip()) for part in text.split(",") if part.strip())


class Damaged(Record, frozen=True, kw_only=True):
    """Stands for the entry points of a distribution whose metadata cannot be read; loading it fails with `reason`."""

    name: str
    reason: str
    version: str = ""
    value: str = ""

    @property
    def dist(self) -> Any:
        """Itself: it has the name and the version of its distribution."""
        return self


def discover() -> list[EntryPoint]:
    """Entry points of the group ``hf2q``, read from installed metadata; imports no plugin.

    A distribution with damaged metadata hides none of the others. The first on the path wins, as when importing.
    """
    found: list[EntryPoint] = []
    seen: set[str] = set()
    for dist in distributions():
        try:
            if not dist.mentions(GROUP):
                continue
            name = normalized(dist.name)
            if name not in seen:
                seen.add(name)
                found += dist.points(GROUP)
        except Exception as error:  # whatever importlib-metadata makes of a damaged file
            found.append(_damaged(dist, error))
    return found


def _damaged(dist: Distribution, error: Exception) -> EntryPoint:
    reason = f"{type(error).__name__}: {error}"
    try:
        damaged = Damaged(name=dist.name, version=dist.version, reason=reason)
    except Exception:
        damaged = Damaged(name=f"(no name, in {dist.locate_file('')})", reason=reason)
    return cast("EntryPoint", damaged)


def labels(point: EntryPoint) -> frozenset[str]:
    """The names by which a filter may mean this plugin: its own and its distribution's."""
    return frozenset({normalized(point.name), normalized(distribution_of(point))})


def distribution_of(point: EntryPoint) -> str:
    """The distribution's name, or the top module where there is none."""
    return str(point.dist.name) if point.dist is not None else point.value.partition(":")[0].partition(".")[0]


def is_core(point: EntryPoint) -> bool:
    """Whether it is core's own plugin, which allow lists do not have to name."""
    return point.name == BUILTIN and point.value == f"{GROUP}.{BUILTIN}"


def check_filters(points: Sequence[EntryPoint], allow: frozenset[str] | None, deny: frozenset[str]) -> None:
    """Raise PluginLoadError when `allow` names what is not among `points`; log what `deny` names in vain."""
    installed = frozenset().union(*(labels(point) for point in points)) if points else frozenset()
    unknown = (allow or frozenset()) - installed
    if unknown:
        raise PluginLoadError(
            f"plugins asked for are not installed: {listing(unknown)}; installed: {listing(installed)}",
            hint="install them, or correct HF2Q_PLUGINS / --plugins",
        )
    for name in deny - installed:
        log.warning("HF2Q_DISABLE_PLUGINS names %r, which is not installed", name)
