"""Installed distributions, read from their folders on the import path.

importlib-metadata answers the same questions, and takes a tenth of the start of a command for it: it imports the
packages email and zipfile, and reads every METADATA as a mail. Here a folder is read as far as it is plain. Whatever is
not is left to importlib-metadata: archives on the path, finders of others, damaged and unusual files.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

LISTING = "entry_points.txt"
_LINE = re.compile(r"([\w.-]+)\s*=\s*([\w.]+(?::[\w.]+)?)", re.ASCII)
_FIELD = re.compile(r"^(Name|Version): ([\w.!+-]+)$", re.ASCII | re.MULTILINE)


class Point(NamedTuple):
    """An entry point. dist: the distribution that lists it."""

    name: str
    value: str
    dist: Distribution


class Distribution:
    """One distribution: that of the metadata folder `path`, or `whole`, which is importlib-metadata's.

    Errors: those of importlib-metadata, for what is damaged.
    """

    def __init__(self, path: str = "", whole: Any = None) -> None:
        self.path = path
        self._given = whole

    @property
    def name(self) -> str:
        """As its METADATA spells it."""
        name: str = self._fields.get("Name") or self._whole.name
        return name

    @property
    def version(self) -> str:
        """Its version."""
        version: str = self._fields.get("Version") or self._whole.version
        return version

    def mentions(self, group: str) -> bool:
        """Whether its list of entry points has the text `group` in it."""
        listing = self._whole.read_text(LISTING) or "" if self._listing is None else self._listing
        return group in listing

    def points(self, group: str) -> list[Any]:
        """Its entry points of a group: each has a `name`, a `value` and a `dist`."""
        found = []
        section = ""
        for line in map(str.strip, (self._listing or "").splitlines()):
            if not line or line.startswith("#"):
                continue
            if line.startswith("[") and line.endswith("]"):
                section = line[1:-1]
                continue
            match = _LINE.fullmatch(line)
            if match is None:
                break
            if section == group:
                found.append(Point(match[1], match[2], self))
        else:
            if self._listing is not None:
                return found
        return list(self._whole.entry_points.select(group=group))

    def locate_file(self, path: str) -> Any:
        """Where a file of the distribution is."""
        return self._whole.locate_file(path)

    @cached_property
    def _listing(self) -> str | None:
        return self._read(LISTING)

    @cached_property
    def _fields(self) -> dict[str, str]:
        """Name and Version, where they stand as every build tool writes them."""
        head = (self._read("METADATA") or "").partition("\n\n")[0]
        return dict(reversed(_FIELD.findall(head)))  # the first of several counts

    def _read(self, name: str) -> str | None:
        """The text of a file, "" where there is none; None for importlib-metadata to read."""
        if not self.path:
            return None
        try:
            with open(os.path.join(self.path, name), encoding="utf-8") as file:  # noqa: PTH118, PTH123 - for hundreds
                return file.read()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
            return ""
        except (OSError, UnicodeDecodeError):
            return None

    @cached_property
    def _whole(self) -> Any:
        if self._given is not None:
            return self._given
        import importlib_metadata

        return importlib_metadata.Distribution.at(self.path)


def distributions() -> Iterator[Distribution]:
    """All distributions, in the order of the import path."""
    if any(map(_finds_more, sys.meta_path)) or any(map(_is_archive, sys.path)):
        import importlib_metadata

        for whole in importlib_metadata.distributions():
            yield Distribution(whole=whole)
        return
    for place in sys.path:
        for path in _metadata_folders(place):
            yield Distribution(path)


def version_of(name: str) -> str:
    """The version of an installed distribution, whose `name` has neither capitals nor ``-._``.

    Errors: importlib.metadata.PackageNotFoundError.
    """
    for found in distributions():
        if os.path.basename(found.path).lower().startswith(f"{name}-"):  # noqa: PTH119 - for hundreds of them
            return found.version
    from importlib.metadata import version

    return version(name)


def _finds_more(finder: object) -> bool:
    """Whether it finds distributions, and is neither Python's finder on the path nor importlib-metadata's."""
    home = getattr(finder, "__module__", "")  # of a class, or of the class of an object
    return hasattr(finder, "find_distributions") and home not in ("_frozen_importlib_external", "importlib_metadata")


def _is_archive(place: str) -> bool:
    """Whether a place on the path holds distributions otherwise than in folders."""
    return place.lower().endswith(".egg") or os.path.isfile(place)  # noqa: PTH113 - no pathlib for what may be ""


def _metadata_folders(place: str) -> list[str]:
    try:
        names = os.listdir(place or ".")  # noqa: PTH208 - as it comes, like importlib-metadata
    except OSError:
        return []
    return [os.path.join(place, name) for name in names if name.lower().endswith((".dist-info", ".egg-info"))]  # noqa: PTH118
