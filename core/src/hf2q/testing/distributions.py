"""Fake installed distributions: a ``.dist-info`` folder and modules on the path, without pip.

For tests of what happens when a plugin misbehaves, in this process (``monkeypatch.syspath_prepend(folder)``) or in
another (``PYTHONPATH``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent


def write_distribution(
    folder: Path,
    name: str,
    entry_points: Mapping[str, str],
    modules: Mapping[str, str],
    *,
    version: str = "1.0",
) -> Path:
    """Write one distribution into `folder`, as if it were installed there.

    entry_points  of the group ``hf2q``: name -> module
    modules       module name -> source, dedented; a dotted name makes packages

    Returns: its ``.dist-info`` folder.
    """
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[hf2q]", *lines, ""]), encoding="utf-8")
    for module, source in modules.items():
        *packages, last = module.split(".")
        home = folder
        for package in packages:
            home /= package
            home.mkdir(exist_ok=True)
            (home / "__init__.py").touch()
        (home / f"{last}.py").write_text(dedent(source), encoding="utf-8")
    return info
