"""What ``hf2q plugins check`` runs: the contract suites for everything that an installed distribution provides.

Data that only the author has comes from the plugin's module ``hf2q_contract`` (``hf2q_arch_mine.hf2q_contract``): it
holds contract subclasses as tests do, and nothing else imports it. A record that none of them is about gets a suite
without such data, whose checks that need some are "not checked".

This module is also the pytest plugin of that run: it writes each outcome to the file named by ``HF2Q_CHECK_REPORT``,
one JSON object a line, so that outcomes survive whatever ends the process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hf2q.discovery import normalized
from hf2q.plugins import PluginInfo, Plugins
from hf2q.testing.arch import ArchContract
from hf2q.testing.calls import CallsContract
from hf2q.testing.catalog import CatalogContract
from hf2q.testing.codec import CodecContract
from hf2q.testing.contract import NOT_CHECKED, Contract
from hf2q.testing.encoder import EncoderContract
from hf2q.testing.family import FamilyContract
from hf2q.testing.forward import ForwardContract
from hf2q.testing.graph import GraphContract
from hf2q.testing.projector import ProjectorContract
from hf2q.testing.tokenizer import TokenizerContract
from hf2q.testing.writer import WriterContract

BASES = (
    ArchContract,
    ProjectorContract,
    CodecContract,
    GraphContract,
    EncoderContract,
    TokenizerContract,
    WriterContract,
    CallsContract,
    CatalogContract,
    ForwardContract,
    FamilyContract,
)
KINDS: dict[str, tuple[type[Contract], ...]] = {
    "arch": (ArchContract, TokenizerContract),
    "graph": (GraphContract,),
    "codec": (CodecContract,),
    "writer": (WriterContract,),
}
"""Suites by the word for what a hook yields."""


def suites(dist: str) -> dict[str, type[Contract]]:
    """Test classes by name for the distribution or plugin `dist`, for pytest to collect.

    Errors: PluginLoadError when it is not installed.
    """
    wanted = normalized(dist)
    plugins = Plugins.load(only=[dist])
    infos = [
        info
        for info in plugins.infos
        if info.status == "loaded" and wanted in (normalized(info.name), normalized(info.distribution))
    ]
    found: dict[str, type[Contract]] = {}
    for info in infos:
        own = list(authored(info))
        for cls in [*own, *generated(info, own, plugins)]:
            found[f"Test{len(found):02}{cls.__name__}"] = cls
    if not found:  # nothing that has a suite of its own
        found["TestPlugin"] = type("Plugin", (Contract,), {"plugin": dist})
    return found


def authored(info: PluginInfo) -> Iterator[type[Contract]]:
    """Suites of the plugin's own ``hf2q_contract`` module."""
    module = f"{info.module.partition(':')[0]}.hf2q_contract"
    try:
        if find_spec(module) is None:
            return
    except ModuleNotFoundError:  # the plugin is a single module and has no submodules
        return
    for value in vars(import_module(module)).values():
        if isinstance(value, type) and issubclass(value, Contract) and value not in (Contract, *BASES):
            yield value


def generated(info: PluginInfo, own: list[type[Contract]], plugins: Plugins) -> Iterator[type[Contract]]:
    """Suites for what `own` is not about. Those of a family borrow the configuration of another about it."""
    plugin = "builtin" if info.name == "builtin" else info.distribution
    for kind, bases in KINDS.items():
        attribute = "arch" if kind in ("arch", "graph") else "name"
        if kind == "arch" and "tensor catalog" not in info.provides:
            continue  # it says whose files these are, and no more yet
        for name in info.provides.get(kind, ()):
            encoder = kind == "graph" and name in plugins.graphs and plugins.graph(name).task == "embed"
            for base in (EncoderContract,) if encoder else bases:
                if any(issubclass(cls, base) and getattr(cls, attribute) == name for cls in own):
                    continue
                fields: dict[str, Any] = {"plugin": plugin, attribute: name}
                near = [cls for cls in own if issubclass(cls, FamilyContract) and cls.arch == name]
                if near and issubclass(base, FamilyContract):
                    fields |= {key: getattr(near[0], key) for key in ("config", "shapes", "leave_out", "mtp")}
                yield type(f"{base.__name__}_{name}", (base,), fields)
    for name in info.provides.get("chat format", ()):
        known = any(issubclass(cls, CallsContract) and cls.name == name for cls in own)
        if plugins.chat_format(name).tools and not known:
            yield type(f"CallsContract_{name}", (CallsContract,), {"plugin": plugin, "name": name})
    for name in info.provides.get("projector", ()):
        families = [entry.arch for entry in Plugins.load(only=[plugin]).archs if entry.projector == name]
        if not any(issubclass(cls, ProjectorContract) and cls.arch in families for cls in own):
            fields = {"plugin": plugin, "arch": families[0] if families else ""}
            yield type(f"ProjectorContract_{name}", (ProjectorContract,), fields)


def subject(cls: type[Contract]) -> str:
    """What a suite is about: ``codec Q4_K``."""
    word = next((base.__name__.removesuffix("Contract").lower() for base in BASES if issubclass(cls, base)), "plugin")
    return f"{word} {getattr(cls, 'arch', None) or getattr(cls, 'name', None) or cls.plugin}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the outcome of each check."""
    report = yield
    if report.when == "call" or report.outcome != "passed":
        cls = getattr(item, "cls", None)
        name, _, parameters = item.name.removesuffix("]").partition("[")
        words = name.removeprefix("test_").replace("_", " ")
        note(
            {
                "subject": subject(cls) if cls is not None else item.nodeid,
                "check": item.name,
                "text": f"{words} ({parameters})" if parameters else words,
                "verdict": {"passed": "passed", "failed": "failed"}.get(report.outcome, "not checked"),
                "reason": reason(report),
            }
        )
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note what kept checks from being collected."""
    if report.failed:
        text = "the suites can be collected"
        note({"subject": "run", "check": "collect", "text": text, "verdict": "failed", "reason": reason(report)})


def pytest_sessionfinish() -> None:
    """Note that the run came to its end: a report without this line is of a process that was ended."""
    note({"end": "reached"})


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a check did not pass, in a line or a few; "" when it did."""
    if report.outcome == "passed":
        return ""
    if isinstance(report.longrepr, tuple):  # a skip: file, line, message
        return str(report.longrepr[2]).removeprefix("Skipped: ").removeprefix(NOT_CHECKED)
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", None) or report.longreprtext or "no reason given")


def note(outcome: dict[str, str]) -> None:
    """Append one outcome to the report."""
    with Path(os.environ["HF2Q_CHECK_REPORT"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(outcome, ensure_ascii=False) + "\n")
