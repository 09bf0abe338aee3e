"""Verdicts for people, and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf2q.serve.selftest.check import Verdict


def table(verdicts: Sequence[Verdict]) -> str:
    """One line for each, and the sum."""
    width = max((len(verdict.name) for verdict in verdicts), default=0)
    lines = []
    area = None
    for verdict in verdicts:
        if verdict.area != area:
            area = verdict.area
            lines.append(area)
        reason = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in verdict.reason)
        lines.append(f"  {verdict.result}  {verdict.name:<{width}}  {verdict.seconds:6.2f} s  {reason}".rstrip())
    counts = ", ".join(f"{sum(v.result == r for v in verdicts)} {word}" for r, word in _WORDS)
    return "\n".join([*lines, counts])


_WORDS = (("PASS", "passed"), ("FAIL", "failed"), ("SKIP", "skipped"))


def as_json(model: str, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The same as an object."""
    return {
        "model": model,
        "passed": sum(verdict.result == "PASS" for verdict in verdicts),
        "failed": sum(verdict.result == "FAIL" for verdict in verdicts),
        "skipped": sum(verdict.result == "SKIP" for verdict in verdicts),
        "checks": [verdict._asdict() for verdict in verdicts],
    }
