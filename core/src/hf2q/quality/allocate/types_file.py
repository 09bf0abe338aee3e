"""A choice of types as a text for ``--tensor-type-file``, from which the output can be made again, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hf2q.errors import WriteError
from hf2q.formats.temporary import hint_for

ENDING = ".types.txt"


def pattern_for(name: str) -> str:
    """A regular expression for this name, end to end. Options fold patterns to lower case, so a capital is a dot."""
    return f"^{''.join('.' if c.isupper() else _plain(c) for c in name)}$"


def _plain(c: str) -> str:
    return f"\\{c}" if c in ".^$*+?{}[]|()\\" else c


def text_of(pairs: Sequence[tuple[str, str]], *, asked: str, recipe: str) -> str:
    """The file's text, with a line on how to use it."""
    lines = [f"# --quant {asked} chose these types; --quant {recipe} --tensor-type-file FILE makes the same file again"]
    return "\n".join([*lines, *(f"{pattern}={qtype.lower()}" for pattern, qtype in pairs), ""])


def write(path: Path, text: str) -> None:
    """Errors: WriteError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WriteError(f"{path} cannot be written: {error.strerror}", hint=hint_for(error)) from error
