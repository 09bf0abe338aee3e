"""Texts by name: those that come with hf2q, and files."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from hf2q.errors import MissingFileError, listing
from hf2q.quality.text import Corpus, read_corpus


def shipped() -> tuple[str, ...]:
    """Names of the texts that come with hf2q."""
    return tuple(sorted(file.name.removesuffix(".txt") for file in _folder().iterdir() if file.name.endswith(".txt")))


def open_corpus(name: str) -> Corpus:
    """A file, or one of `shipped`; a path with a ``/`` is always a file.

    Errors: MissingFileError, SourceError.
    """
    if "/" in name or Path(name).exists():
        return read_corpus(Path(name))
    names = shipped()
    if name not in names:
        raise MissingFileError(
            f"there is no file {name}, and no corpus of that name", hint=f"corpora: {listing(names)}"
        )
    data = _folder().joinpath(f"{name}.txt").read_bytes()
    return Corpus(name=name, text=data.decode(), sha256=hashlib.sha256(data).hexdigest())


def _folder() -> Traversable:
    return files("hf2q.quality").joinpath("corpora")
