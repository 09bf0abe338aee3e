"""``hf2q doctor``: is this machine and this installation fit for the work? Each line PASS, INFO, WARN or FAIL.

Works whatever a plugin or a native library does: both are asked in child processes.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hf2q.cli.examine import ask
from hf2q.cli.output import print_json, size
from hf2q.cli.requirements import Requirement, installed, requirements
from hf2q.errors import listing
from hf2q.probe import Report, probe
from hf2q.types import Record

DISK_FLOOR = 10_000_000_000
MEMORY_FLOOR = 2_000_000_000
REPEATING = ("all", "cuda")
"""Extras that only repeat packages of others."""
PURPOSE = {"simd": "quantizing and the SIMD kernels", "serve": "running and serving models"}


TO_SERVE = 'pip install "hf2q[serve]"'


class Check(Record, frozen=True, kw_only=True):
    """One line of the report. `state` is PASS, INFO, WARN or FAIL; `remedy` is what to do about the last two."""

    name: str
    state: str
    text: str
    remedy: str = ""


def command(*, json: Annotated[bool, Parameter(help="Print JSON.")] = False) -> int:
    """Check Python, processor, memory, disk, packages, backends, plugins and cache folders.

    Exit code 1 when a line says FAIL, else 0.
    """
    checks = list(examine())
    if json:
        print_json({"checks": checks})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            print(f"{check.state}  {check.name:{width}}  {check.text}")
            if check.remedy:
                print(f"{'':{width + 8}}→ {check.remedy}")
    return 1 if any(check.state == "FAIL" for check in checks) else 0


def examine() -> Iterator[Check]:
    """All checks, cheap ones first."""
    yield _python()
    yield Check(name="platform", state="INFO", text=f"{platform.system()} {platform.release()} {platform.machine()}")
    yield _memory()
    yield _disk(Path.cwd())
    yield from packages(requirements())
    report = probe()
    yield from plugins(report)
    yield from _processor()
    yield from _backends([info.name for info in report.failures])
    yield from _caches()


def _python() -> Check:
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    return Check(name="python", state="PASS", text=found)  # an older one could not have run this


def _memory() -> Check:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return Check(name="memory", state="INFO", text="unknown")
    if total < MEMORY_FLOOR:
        remedy = "use small models and HF2Q_THREADS=1"
        return Check(name="memory", state="WARN", text=f"{size(total)} in all", remedy=remedy)
    return Check(name="memory", state="PASS", text=f"{size(total)} in all, {os.cpu_count()} CPUs")


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    text = f"{size(free)} free at {folder}"
    if free < DISK_FLOOR:
        remedy = f"a published model needs far more than {size(DISK_FLOOR)}: free some, or work elsewhere"
        return Check(name="disk", state="WARN", text=text, remedy=remedy)
    return Check(name="disk", state="PASS", text=text)


def packages(wanted: Iterable[Requirement]) -> Iterator[Check]:
    """One line for the base install and one for each extra."""
    by_extra: dict[str, list[Requirement]] = {}
    for requirement in wanted:
        if requirement.extra not in REPEATING:
            by_extra.setdefault(requirement.extra, []).append(requirement)
    for extra, members in by_extra.items():
        versions = {member: installed(member.name) for member in members}
        missing = [member.name for member, version in versions.items() if version is None]
        wrong = [
            f"{member.name} {version} (wanted {member.wanted})"
            for member, version in versions.items()
            if version is not None and not member.accepts(version)
        ]
        name = f"packages [{extra}]" if extra else "packages"
        remedy = f'pip install "hf2q[{extra}]"' if extra else "pip install --upgrade hf2q"
        if not missing and not wrong:
            shown = ", ".join(f"{member.name} {version}" for member, version in versions.items())
            yield Check(name=name, state="PASS", text=shown)
            continue
        parts = [f"missing: {listing(missing)}"] if missing else []
        parts += [f"unfit: {listing(wrong)}"] if wrong else []
        state = "FAIL" if not extra else "WARN" if wrong or extra in PURPOSE else "INFO"
        purpose = f" (for {PURPOSE[extra]})" if extra in PURPOSE else ""
        yield Check(name=name, state=state, text="; ".join(parts), remedy=remedy + purpose)


def plugins(report: Report) -> Iterator[Check]:
    """One line for all that loaded, one for each failure and each problem."""
    loaded = [f"{info.name} {info.version}" for info in report.plugins if info.status == "loaded"]
    yield Check(name="plugins", state="PASS" if loaded else "WARN", text=f"loaded: {listing(loaded) or 'none'}")
    disabled = [info.name for info in report.plugins if info.status == "disabled"]
    if disabled:
        yield Check(name="plugins", state="INFO", text=f"disabled: {listing(disabled)}")
    for info in report.failures:
        yield Check(name=f"plugin {info.name}", state="WARN", text=info.reason, remedy=info.hint or "")
    for problem in report.problems:
        yield Check(name="plugins", state="WARN", text=problem.message, remedy=problem.hint or "")


def _processor() -> Iterator[Check]:
    if installed("numba") is None:
        return  # the line on the extra says so already
    found, error = ask("simd")
    if error:
        yield Check(name="processor", state="FAIL", text=error, remedy='pip install --force-reinstall "hf2q[simd]"')
        return
    features = ", ".join(found["features"]) or "none that matter"
    text = f"{found['cpu']}: {found['lanes']} float32 lanes; kernels of the cpu backend: {found['isa']}; {features}"
    yield Check(name="processor", state="PASS", text=text)
    yield _writable("kernel cache", Path(found["cache"]), "HF2Q_CACHE_DIR")


def _backends(disable: Iterable[str]) -> Iterator[Check]:
    found, error = ask("backends", disable=disable)
    if error:
        yield Check(name="backends", state="WARN", text=error, remedy="hf2q plugins")
        return
    for entry in found:
        name = f"backend {entry['name']}"
        if entry["reason"]:
            yield Check(name=name, state="WARN", text=entry["reason"], remedy=entry["requires"])
        else:
            yield Check(name=name, state="PASS", text="available")
    yield from _auto(disable)


def _auto(disable: Iterable[str]) -> Iterator[Check]:
    """Which backend "auto" takes, and why: what those before and after it compute with."""
    found, error = ask("auto", disable=disable)
    if error:
        yield Check(name="backend auto", state="WARN", text=error, remedy="hf2q plugins")
        return
    if not found:
        yield Check(name="backend auto", state="WARN", text="no backend can run here", remedy=TO_SERVE)
        return
    best, *others = (f"{entry['name']} ({entry['instructions']})" for entry in found)
    order = f"takes {best}" + (f"; it goes before {', then '.join(others)}" if others else ", the only one")
    yield Check(name="backend auto", state="PASS", text=order)


def _caches() -> Iterator[Check]:
    home = os.environ.get("HF_HOME")
    hub = Path(home) if home else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    yield _writable("hub cache", hub, "HF_HOME")


def _writable(name: str, folder: Path, variable: str) -> Check:
    """Whether `folder`, or what it would be made in, can be written. Nothing is created."""
    standing = folder
    while not standing.exists() and standing != standing.parent:
        standing = standing.parent
    if standing.is_dir() and os.access(standing, os.W_OK | os.X_OK):
        return Check(name=name, state="PASS", text=str(folder))
    return Check(
        name=name, state="WARN", text=f"{folder} cannot be written", remedy=f"set {variable} to another folder"
    )
