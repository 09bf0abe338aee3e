"""Importance matrices on disk: which format a file has is told by its content, never by its name."""

from __future__ import annotations

import os

from hf2q.errors import UsageError
from hf2q.formats.files import open_regular
from hf2q.formats.gguf.layout import MAGIC
from hf2q.formats.imatrix.gguf import read_gguf, write_gguf
from hf2q.formats.imatrix.legacy import encode_legacy, read_legacy
from hf2q.formats.imatrix.record import Imatrix
from hf2q.formats.whole import write_whole

FORMATS = ("gguf", "dat")


def imatrix_format(path: str | os.PathLike[str]) -> str:
    """``gguf`` or ``dat``, by the first bytes. Errors: MissingFileError, SourceError when it cannot be opened."""
    name = os.fspath(path)
    descriptor, _ = open_regular(name)
    try:
        return "gguf" if os.pread(descriptor, len(MAGIC), 0) == MAGIC else "dat"
    finally:
        os.close(descriptor)


def read_imatrix(path: str | os.PathLike[str]) -> Imatrix:
    """Read a file of either format. It is mapped, not copied: it must not be cut short while the matrix is in use.

    Errors: MissingFileError, SourceError; FormatError naming the place of anything wrong in it.
    """
    name = os.fspath(path)
    return read_gguf(name) if imatrix_format(name) == "gguf" else read_legacy(name)


def write_imatrix(path: str | os.PathLike[str], imatrix: Imatrix, form: str) -> None:
    """Write a file of the format `form`, one of `FORMATS`, replacing an existing one. Same matrix, same bytes.

    The file carries its name only when it is complete. Errors: UsageError for another format, WriteError.
    """
    name = os.fspath(path)
    if form == "gguf":
        write_gguf(name, imatrix)
    elif form == "dat":
        write_whole(name, encode_legacy(imatrix))
    else:
        raise UsageError(f"no format {form!r} of importance matrices", hint=f"one of {', '.join(FORMATS)}")
