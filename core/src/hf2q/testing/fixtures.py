"""Finding the trained fixture checkpoints, which are too large for the repository.

``HF2Q_FIXTURES`` names their folder; else it is ``shared/fixtures`` beside the repository. Tests over them are skipped
with a message that says so when they are not there.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def fixtures_dir() -> Path | None:
    """The folder of fixture checkpoints, or None when there is none on this machine.

    Errors: pytest fails when ``HF2Q_FIXTURES`` names something that is not a folder: a wrong setting must not look
    like a machine without fixtures.
    """
    named = os.environ.get("HF2Q_FIXTURES")
    if named:
        if not Path(named).is_dir():
            pytest.fail(f"HF2Q_FIXTURES is {named!r}, which is not a folder", pytrace=False)
        return Path(named)
    for parent in Path(__file__).resolve().parents:
        if (parent / "constraints.txt").is_file() or (parent / ".git").exists():
            beside = parent.parent / "shared" / "fixtures"
            return beside if beside.is_dir() else None
    return None


def require_fixture(name: str) -> Path:
    """The path of one fixture, a folder or a file of the fixtures' folder; skips the test when it is not there."""
    folder = fixtures_dir()
    if folder is None:
        pytest.skip(f"fixture {name!r}: no fixtures folder here (set HF2Q_FIXTURES to run this test)")
    path = folder / name
    if not path.exists():
        pytest.skip(f"fixture {name!r} is not in {folder}")
    return path
