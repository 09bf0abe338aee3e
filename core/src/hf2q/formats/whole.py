"""Writing a small file so that its name never belongs to half of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hf2q.errors import WriteError
from hf2q.formats.temporary import create_unfinished, hint_for


def write_whole(path: str, parts: Iterable[bytes]) -> None:
    """Write `parts` to a hidden file beside `path`, flush it to disk, and give it the name in one step.

    An existing file is replaced; whether it may be is the caller's decision. Whatever goes wrong, also in `parts`,
    nothing is left. Errors: WriteError.
    """
    try:
        target = Path(path).resolve()  # an output that is a link to another disk stays one
        descriptor, temporary = create_unfinished(target)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle
        hint = hint_for(error) if isinstance(error, OSError) else None
        raise WriteError(f"{path} cannot be written: {error}", hint=hint) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise WriteError(f"{path} cannot be written: {error.strerror}", hint=hint_for(error)) from error
        raise
