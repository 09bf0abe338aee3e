"""The work of ``hf2q plugins check``: pytest in a child process over generated suites, and a verdict for each check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from hf2q.cli.output import note, print_json
from hf2q.discovery import normalized
from hf2q.errors import UnknownNameError, UsageError, listing
from hf2q.plugins import PluginInfo
from hf2q.probe import probe

SECONDS = 1800.0
SUITES = "from hf2q.testing.checking import suites\n\nglobals().update(suites({dist!r}))\n"
WORDS = {"passed": "PASS", "failed": "FAIL", "not checked": "NOT CHECKED"}
CHECKED = ("arch", "projector", "graph", "codec", "writer")


def check_distribution(dist: str, *, as_json: bool) -> int:
    """Check an installed distribution, print the verdicts, and return the exit code: 1 when a check failed."""
    infos = _infos(dist)
    outcomes = [
        _outcome(f"plugin {info.name}", "failed", "the plugin loads", info.reason)
        for info in infos
        if info.status != "loaded"
    ]
    if not outcomes:
        if find_spec("pytest") is None:
            raise UsageError("the contract suites run on pytest, which is not installed", hint="pip install pytest")
        outcomes = _run(infos[0].distribution if infos[0].distribution != "hf2q" else "builtin")
    outcomes += _uncovered(infos)
    counts = Counter(outcome["verdict"] for outcome in outcomes)
    if as_json:
        print_json({"distribution": infos[0].distribution, "version": infos[0].version, "checks": outcomes})
    else:
        _print(outcomes)
        summary = ", ".join(f"{counts.get(verdict, 0)} {verdict}" for verdict in WORDS)
        print(f"\n{infos[0].distribution} {infos[0].version}: {summary}")
    return 1 if counts["failed"] else 0


def _infos(dist: str) -> list[PluginInfo]:
    report = probe()
    wanted = normalized(dist)
    found = [info for info in report.plugins if wanted in (normalized(info.name), normalized(info.distribution))]
    if not found:
        installed = listing({info.distribution for info in report.plugins})
        raise UnknownNameError(
            f"no plugin of a distribution {dist!r}; installed: {installed}", hint=f"pip install {dist}"
        )
    return found


def _run(dist: str) -> list[dict[str, str]]:
    note(f"running the contract suites over {dist}")
    with tempfile.TemporaryDirectory(prefix="hf2q-check-") as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")  # no other configuration counts
        (folder / "test_contracts.py").write_text(SUITES.format(dist=dist), encoding="utf-8")
        report = folder / "report.jsonl"
        report.touch()
        command = [sys.executable, "-P", "-m", "pytest", "test_contracts.py", "-c", "pytest.ini", "-q", "--tb=short"]
        command += ["-p", "hf2q.testing.checking", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}"]
        environment = {**os.environ, "HF2Q_CHECK_REPORT": str(report), "PYTEST_ADDOPTS": ""}
        ended = ""
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
            if done.returncode not in (0, 1):
                ended = (
                    f"pytest ended with code {done.returncode}: {done.stdout.decode(errors='replace')[-2000:].strip()}"
                )
        except subprocess.TimeoutExpired:
            ended = f"the suites did not finish within {SECONDS:g} s"
        outcomes: list[dict[str, str]] = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    whole = [outcome for outcome in outcomes if "end" not in outcome]
    if len(whole) == len(outcomes):
        ended = ended or "the process that ran the suites was ended by what they ran"
    if ended and not any(outcome["verdict"] == "failed" for outcome in whole):
        whole.append(_outcome("run", "failed", "the suites run to their end", ended))
    return whole


def _uncovered(infos: Iterable[PluginInfo]) -> list[dict[str, str]]:
    found = []
    for info in infos:
        bare = "arch" in info.provides and "tensor catalog" not in info.provides
        for kind, names in info.provides.items():
            if kind == "tensor catalog" or (kind in CHECKED and not (kind == "arch" and bare)):
                continue  # the suite of its arch covers a catalog
            why = "the plugin brings no tensor catalog" if kind == "arch" else f"there is no suite for a {kind}"
            found += [_outcome(f"{kind} {name}", "not checked", "its contract", why) for name in names]
    return found


def _outcome(subject: str, verdict: str, text: str, reason: str) -> dict[str, str]:
    return {"subject": subject, "check": "", "text": text, "verdict": verdict, "reason": reason}


def _print(outcomes: list[dict[str, Any]]) -> None:
    for subject, group in groupby(outcomes, key=lambda outcome: outcome["subject"]):
        print(subject)
        for outcome in group:
            print(f"  {WORDS[outcome['verdict']]:11}  {outcome['text']}")
            for line in outcome["reason"].splitlines():
                print(f"{'':15}{line}")
