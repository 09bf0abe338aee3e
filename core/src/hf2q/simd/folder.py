"""The folder of what is kept from one process to the next.

`$HF2Q_CACHE_DIR/kernels`, else `$XDG_CACHE_HOME/hf2q/kernels`, else `~/.cache/hf2q/kernels`. It holds
machine code that later runs: it is private to the user, like `__pycache__`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Where compiled kernels are kept; see above. RuntimeError if that needs a home folder and the user has none."""
    if own := os.environ.get("HF2Q_CACHE_DIR"):
        return Path(own) / "kernels"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hf2q" / "kernels"


def read(path: Path) -> bytes:
    """What the file holds; nothing if it is not there."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def write(path: Path, data: bytes) -> None:
    """`path` appears whole or not at all, also when two processes write it at once. Errors: OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
