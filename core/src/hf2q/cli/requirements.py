"""Which packages hf2q asks for, read from its own installed metadata, and which of them are here."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

_LINE = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?\s*\(?(?P<wanted>[^;)]*)\)?\s*(;(?P<marker>.*))?$")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_PLATFORM = re.compile(r"""sys_platform\s*==\s*['"]([^'"]+)['"]""")


@dataclass(frozen=True)
class Requirement:
    """One package, the versions wanted (``>=2.0``), and the extra that asks for it ("" for the base install)."""

    name: str
    wanted: str
    extra: str

    def accepts(self, version: str) -> bool:
        """Whether a version satisfies ``==`` (also with ``.*``), ``>=`` and ``<``; other operators are not judged."""
        return all(_holds(version, part.strip()) for part in self.wanted.split(",") if part.strip())


def requirements() -> tuple[Requirement, ...]:
    """All requirements of the installed hf2q for this platform, except those on hf2q itself."""
    import importlib_metadata

    return tuple(parse(importlib_metadata.requires("hf2q") or (), sys.platform))


def parse(lines: Iterable[str], platform: str) -> Iterable[Requirement]:
    """Requirements from ``Requires-Dist`` lines, without those for other platforms and those on hf2q itself."""
    for line in lines:
        match = _LINE.match(line.strip())
        if match is None:
            continue
        marker = match["marker"] or ""
        extra, where = _EXTRA.search(marker), _PLATFORM.search(marker)
        if match["name"] != "hf2q" and (where is None or where[1] == platform):
            yield Requirement(match["name"], match["wanted"].strip(), extra[1] if extra else "")


def installed(name: str) -> str | None:
    """The installed version of a package, or None."""
    import importlib_metadata

    try:
        return importlib_metadata.version(name)
    except importlib_metadata.PackageNotFoundError:
        return None


def _holds(version: str, clause: str) -> bool:
    for operator in ("==", ">=", "<"):
        if clause.startswith(operator) and not clause.startswith("<="):
            wanted = clause.removeprefix(operator).strip()
            if wanted.endswith(".*"):
                return f"{version}.".startswith(wanted[:-1])
            if operator == "==":
                return version == wanted
            return (_numbers(version) >= _numbers(wanted)) == (operator == ">=")
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
