"""Running a contract suite as a function: which of its checks fail? For tests that prove that a fault is caught."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from hf2q.testing.contract import Contract


def failures(cls: type[Contract], folder: Path, *, only: Collection[str] | None = None) -> dict[str, str]:
    """Run the checks of a suite, on the reference backend where they need one; returns name -> message of those failed.

    `folder` is an empty one to write in; `only` names the checks to run, by default all. Those that are "not checked"
    count as neither failed nor passed.
    """
    checks = [name for name, _ in inspect.getmembers(cls, inspect.isfunction) if name.startswith("test_")]
    found = {}
    for place, name in enumerate(checks if only is None else only):
        for number, values in enumerate(_parameters(getattr(cls, name))):
            message = _failure(cls, name, folder / f"{place}.{number}", values)
            if message is not None:
                found[name] = message
    return found


def _parameters(check: Any) -> list[dict[str, Any]]:
    """The arguments that the check's ``parametrize`` marks give it, a set for each run."""
    sets: list[dict[str, Any]] = [{}]
    for mark in getattr(check, "pytestmark", ()):
        if mark.name == "parametrize":
            name, values = mark.args
            sets = [{**known, name: value} for known in sets for value in values]
    return sets


def _failure(cls: type[Contract], name: str, folder: Path, values: dict[str, Any]) -> str | None:
    from _pytest.outcomes import Failed, Skipped

    suite: Any = cls()
    check = getattr(suite, name)
    try:
        check(**_arguments(suite, check, folder, values))
    except Skipped:
        return None
    except (Failed, Exception) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _arguments(suite: Any, check: Callable[..., None], folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """What pytest's fixtures and parameters would give."""
    folder.mkdir(parents=True)
    wanted = inspect.signature(check).parameters
    given: dict[str, Any] = {"tmp_path": folder, "backend": "reference", **values}
    if "arrays" in wanted or "model" in wanted:
        given["arrays"] = suite.tensors(folder)
        given["model"] = suite.build("reference", given["arrays"]) if "model" in wanted else None
    return {name: given[name] for name in wanted}
