"""The folder of what is kept from one process to the next.

`$HF2Q_CACHE_DIR/kernels`, else `$XDG_CACHE_HOME/hf2q/kernels`, else `~/.cache/hf2q/kernels`. It holds
machine code that later runs, like `__pycache__`. So a file counts only when it belongs to the user (or to root), nobody
else can write it, and its digest fits its content and the key by which it was looked for: a file that is damaged, mixed
up with another, or put there by somebody else is written anew. Who has the user's own rights needs no such file.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from pathlib import Path

from hf2q.simd.digest import DIGEST, digest

logger = logging.getLogger(__name__)

OURS = (".code", ".host", ".kernel", ".tmp")
"""How names of files here end, or ended in earlier versions."""
DAY = 86400.0
UNUSED = 30 * DAY
"""Seconds after which a file that nobody has used goes."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Where compiled kernels are kept; see above. RuntimeError if that needs a home folder and the user has none."""
    if own := os.environ.get("HF2Q_CACHE_DIR"):
        return Path(own) / "kernels"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hf2q" / "kernels"


def read(path: Path, key: bytes) -> bytes | None:
    """What `write` put there under this key; None if it is not there, or must not be used, which is logged."""
    try:
        with path.open("rb") as stream:
            found = os.fstat(stream.fileno())
            doubt = _doubt(found)
            data = b"" if doubt else stream.read()
    except OSError:
        return None
    body = data[DIGEST:]
    if not doubt and _seal(body, key) != data[:DIGEST]:
        doubt = "is damaged"
    if doubt:
        logger.warning("%s %s and is written anew", path, doubt)
        return None
    _used(path, found)
    return body


def write(path: Path, key: bytes, body: bytes) -> None:
    """`path` appears whole or not at all, also when two processes write it at once. Errors: OSError."""
    import tempfile  # here: to read, nobody needs shutil and the compressors that it imports

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(_seal(body, key) + body)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def prune(folder: Path, stem: str, kept: int) -> None:
    """Remove what nobody has used for a long time, and of the files of one kernel, `stem`, all but the latest `kept`.

    Other processes may be at work here: what they miss they compile again. Errors: OSError.
    """
    now = time.time()
    own: list[tuple[float, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(OURS) or not entry.is_file(follow_symlinks=False):
                continue
            try:
                used = entry.stat(follow_symlinks=False).st_mtime
            except FileNotFoundError:  # another process was faster
                continue
            if now - used > UNUSED:
                Path(entry.path).unlink(missing_ok=True)
            elif entry.name.startswith(f"{stem}-"):
                own.append((used, entry.path))
    for _, path in sorted(own, reverse=True)[kept:]:
        Path(path).unlink(missing_ok=True)


def _seal(body: bytes, key: bytes) -> bytes:
    return digest(digest(key), body)


def _doubt(found: os.stat_result) -> str:
    """Why a file must not be run, or ""."""
    if not hasattr(os, "geteuid"):  # where the system has no such owners, the folder is the user's own
        return ""
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user ({found.st_uid})"
    if found.st_mode & OTHERS_WRITE:
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


def _used(path: Path, found: os.stat_result) -> None:
    """Note that a file is in use, once a day. The time of its last reading would tell, were it kept everywhere."""
    if time.time() - found.st_mtime > DAY:
        try:
            os.utime(path)
        except OSError as problem:
            logger.debug("%s cannot be marked as used: %s", path, problem)
