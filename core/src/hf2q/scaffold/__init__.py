"""``hf2q plugins new``: a complete plugin of one kind, written from the templates in ``_template``.

A template file ends in ``.tmpl`` and is filled in by `string.Template`; others are copied. ``__name__`` and
``__package__`` in paths stand for the plugin's names. The templates are what the tutorial's example plugin is made of:
a test keeps them equal.
"""

from __future__ import annotations

import keyword
import re
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from string import Template

from hf2q.errors import UsageError, WriteError

TEMPLATES = Path(__file__).parent / "_template"
KINDS: Mapping[str, tuple[str, str]] = {
    "arch": ("arch", "A family of models for hf2q: {name}"),
    "codec": ("quant", "A storage type for hf2q: {name}"),
    "writer": ("writer", "An output format for hf2q: {name}"),
    "graph": ("graph", "A forward graph for hf2q: {name}"),
}
"""Kinds of plugins: the word in the distribution's name, and its description."""

_CONTRACT = "src/__package__/hf2q_contract"
SHARED: Mapping[str, Mapping[str, str]] = {
    "graph": {
        f"{_CONTRACT}/hparams.py.tmpl": "arch/src/__package__/hparams.py.tmpl",
        f"{_CONTRACT}/catalog.py.tmpl": "arch/src/__package__/catalog.py.tmpl",
        f"{_CONTRACT}/reference/config.json.tmpl": "arch/src/__package__/reference/config.json.tmpl",
        f"{_CONTRACT}/reference/logits.npz": "arch/src/__package__/reference/logits.npz",
        f"{_CONTRACT}/reference/PROVENANCE.md.tmpl": "arch/src/__package__/reference/PROVENANCE.md.tmpl",
    }
}
"""Templates that a kind takes from another: path -> template."""

MAX_NAME = 16


def create(name: str, kind: str, directory: Path) -> tuple[Path, ...]:
    """Write a plugin into `directory`, which must not exist or be empty; nothing is left of a failed attempt.

    Returns: the files, in order.
    Errors: UsageError for a bad name or kind and for a directory that is in use; WriteError when it cannot be written.
    """
    values = names(name, kind)
    files = render(kind, values)
    existed = directory.exists()
    if existed and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} exists and is not an empty folder", hint="choose a new folder")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            _write(directory, files)
        except OSError:
            _empty(directory)
            if not existed:
                directory.rmdir()
            raise
    except OSError as error:
        raise WriteError(f"{error.filename or directory} cannot be written: {error.strerror}") from error
    return tuple(directory / path for path in files)


def _write(directory: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _empty(directory: Path) -> None:
    for child in directory.iterdir():
        if child.is_dir():
            shutil.rmtree(child, ignore_errors=True)
        else:
            child.unlink(missing_ok=True)


def names(name: str, kind: str) -> dict[str, str]:
    """What the placeholders of the templates stand for. Errors: UsageError."""
    if kind not in KINDS:
        raise UsageError(f"--kind is {kind!r}, expected one of {', '.join(KINDS)}")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or len(name) > MAX_NAME or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} cannot name a plugin: expected at most {MAX_NAME} lower-case letters, digits and single "
            "underscores, a letter first",
            hint="for example llama or q3_mine",
        )
    word, description = KINDS[kind]
    package = f"hf2q_{word}_{name}"
    if find_spec(package) is not None:
        raise UsageError(f"a package {package} is installed already", hint="choose another name")
    dependencies = ['"hf2q>=0.1,<0.2"', *(['"numpy>=2.0"'] if kind in ("codec", "writer") else [])]
    return {
        "name": name,
        "package": package,
        "distribution": package.replace("_", "-"),
        "Class": "".join(part.capitalize() for part in name.split("_")),
        "description": description.format(name=name),
        "dependencies": ", ".join(dependencies),
    }


def render(kind: str, values: Mapping[str, str]) -> dict[str, bytes]:
    """Path -> content of every file of a plugin."""
    sources = {
        str(path.relative_to(TEMPLATES / folder)): path for folder in ("common", kind) for path in _files(folder)
    }
    sources |= {path: TEMPLATES / template for path, template in SHARED.get(kind, {}).items()}
    files = {}
    for path, source in sorted(sources.items()):
        final = path.replace("__name__", values["name"]).replace("__package__", values["package"])
        content = source.read_bytes()
        if final.endswith(".tmpl"):
            final = final.removesuffix(".tmpl")
            content = Template(content.decode("utf-8")).substitute(values).encode("utf-8")
        files[final] = content
    return files


def _files(folder: str) -> list[Path]:
    return [path for path in (TEMPLATES / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
