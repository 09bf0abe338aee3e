"""Writing a small file so that its name never belongs to half of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hf2q.errors import WriteError


def write_whole(path: str, parts: Iterable[bytes]) -> None:
    """Write `parts` to a hidden file beside `path`, flush it to disk, and give it the name in one step.

    An existing file is replaced; whether it may be is the caller's decision. Whatever goes wrong, also in `parts`,
    nothing is left. Errors: WriteError.
    """
    try:
        target = Path(path).resolve()  # an output that is a link to another disk stays one
        stem = os.fsdecode(os.fsencode(target.name)[:200])  # names of files end at 255 bytes
        temporary = target.parent / f".{stem}.{os.getpid()}.tmp"
        file = temporary.open("xb")
    except FileExistsError:
        raise WriteError(
            f"{path} cannot be written: {temporary} exists already",
            hint="if nothing else is writing there, delete that file",
        ) from None
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle
        raise WriteError(f"{path} cannot be written: {error}") from error
    try:
        with file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise WriteError(f"{path} cannot be written: {error.strerror}") from error
        raise
