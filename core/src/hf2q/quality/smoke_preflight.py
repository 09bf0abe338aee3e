"""What a smoke run needs, looked at before anything large is done. Each failure has an exit code of its own.

    2  no token for the Hub           6  the repository cannot be had
    3  too little disk, or unknown    7  unknown arch
    4  this machine cannot run it     8  the local directory is not usable

Tools of other projects are not needed, so nothing looks for them; 5 (no release build) is not used.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hf2q.backends.memory import available_memory
from hf2q.errors import Hf2qError, HubError, LoadError, UnknownNameError, listing
from hf2q.types import ArchEntry, Record

if TYPE_CHECKING:
    from hf2q.convert import Summary
    from hf2q.plugins import Plugins

NO_TOKEN, NO_DISK, NO_ENGINE, NO_REPOSITORY, UNKNOWN_ARCH, NOT_PASSED = 2, 3, 4, 6, 7, 8
RESERVE_GB = 10
GB = 10**9


class Wanted(Record, frozen=True, kw_only=True):
    """A smoke run: a family and a recipe, from a local directory or a repository, in a folder for the output.

    disk_gb  free disk to ask for, in GB; None: the family's, and 10 more
    """

    arch: str
    quant: str
    folder: Path
    local: Path | None = None
    repo: str | None = None
    disk_gb: int | None = None
    backend: str = "auto"
    threads: int | None = None


class Stopped(Exception):
    """A step did not pass. `step` is its name, `code` the exit code."""

    def __init__(self, step: str, code: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.step, self.code, self.message, self.hint = step, code, message, hint


class Step(Record, frozen=True, kw_only=True):
    """A step that passed, and what it saw."""

    step: str
    found: str


def free_disk(folder: Path) -> int | None:
    """Bytes free where `folder` is or will be, or None when the system does not say."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


def find_arch(wanted: Wanted, plugins: Plugins) -> ArchEntry:
    """The family. Errors: Stopped, 7."""
    entry = plugins.archs.get(wanted.arch)
    if entry is None:
        known = listing(entry.arch for entry in plugins.archs)
        raise Stopped("arch", UNKNOWN_ARCH, f"no plugin provides the arch {wanted.arch!r}; known: {known}")
    return entry


def repository_of(wanted: Wanted, entry: ArchEntry) -> str:
    """The repository that is meant, "" for a local directory or when the family names none."""
    if wanted.local is not None:
        return ""
    return wanted.repo or next(iter(entry.hf_repos), "")


def check_token(token: Callable[[], str | None]) -> Step:
    """Errors: Stopped, 2."""
    try:
        found = token()
    except Hf2qError as error:
        raise Stopped("token", NO_TOKEN, error.message, error.hint) from error
    if not found:
        raise Stopped("token", NO_TOKEN, "there is no token for the Hub", "HF_TOKEN, `hf auth login`, or --local-dir")
    return Step(step="token", found="there is one")


def check_disk(free: int | None, floor_gb: int, folder: Path) -> Step:
    """`floor_gb` is all that must be free. Errors: Stopped, 3; what is not known does not pass."""
    if free is None:
        raise Stopped(
            "disk", NO_DISK, f"the free space of {folder} is not known, needed are {floor_gb} GB", "--output-dir"
        )
    if free < floor_gb * GB:
        raise Stopped(
            "disk",
            NO_DISK,
            f"{folder} has {free / GB:.1f} GB free, needed are {floor_gb}",
            "--output-dir names another disk; --disk-gb, how much a small checkpoint needs",
        )
    return Step(step="disk", found=f"{free / GB:.1f} GB free, needed are {floor_gb}")


def check_engine(wanted: Wanted, plugins: Plugins) -> Step:
    """Whether our engine runs the family, on that backend. Errors: Stopped, 4."""
    from hf2q.backends.select import select_backend

    try:
        plugins.graph(wanted.arch)
        name = select_backend(plugins, wanted.backend, threads=wanted.threads).name
    except (UnknownNameError, LoadError) as error:
        raise Stopped("engine", NO_ENGINE, error.message, error.hint) from error
    return Step(step="engine", found=f"backend {name}")


def check_source(wanted: Wanted, source: str, plan: Callable[[], Summary]) -> tuple[Step, Summary]:
    """Plan the conversion: from headers alone. Errors: Stopped, 8 for a local directory, else 6."""
    step, code = ("local-dir", NOT_PASSED) if wanted.local is not None else ("repo", NO_REPOSITORY)
    if not source:
        raise Stopped(
            step, code, f"no repository is known for the arch {wanted.arch}", "--repo ID names one, or --local-dir"
        )
    if wanted.local is not None and not wanted.local.is_dir():
        raise Stopped(step, code, f"there is no directory {wanted.local}")
    try:
        summary = plan()
    except HubError as error:
        raise Stopped(step, code, error.message, error.hint) from error
    except Hf2qError as error:
        raise Stopped(step, code, f"{source} cannot be converted: {error.message}", error.hint) from error
    if summary.plan.arch != wanted.arch:
        raise Stopped(step, code, f"{source} holds a model of the arch {summary.plan.arch}, expected {wanted.arch}")
    return Step(
        step=step, found=f"{source}, {len(summary.plan.tensors)} tensors, {summary.plan.nbytes:,} bytes"
    ), summary


def check_memory(nbytes: int, available: Callable[[], int | None] = available_memory) -> Step:
    """Whether the weights can fit; the engine looks more closely when it loads them. Errors: Stopped, 4."""
    there = available()
    if there is None:
        return Step(step="memory", found="unknown here; the engine checks when it loads")
    if there < nbytes:
        raise Stopped("memory", NO_ENGINE, f"the weights take {nbytes:,} bytes, there are {there:,} of memory")
    return Step(step="memory", found=f"{there:,} bytes, the weights take {nbytes:,}")
