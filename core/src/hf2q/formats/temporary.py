"""Unfinished files: hidden, beside their target, locked by whoever writes them, and swept up when nobody does.

A process that is killed leaves its unfinished file behind. The next one that writes to the same target removes it: the
lock that a living writer holds on its file is gone with the process, whatever machine or container it ran in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def create_unfinished(target: Path) -> tuple[int, Path]:
    """Create a hidden file beside `target`, and remove those that dead writers of the same target left.

    Returns: the descriptor, open for reading and writing and locked until it is closed, and the path. Errors: OSError.
    """
    for stale in unfinished_names(target):
        _remove_abandoned(stale)
    while True:
        path = target.parent / f".{_stem(target)}.{secrets.token_hex(4)}.tmp"
        try:
            descriptor = os.open(path, _CREATE, 0o666)
        except (KeyboardInterrupt, SystemExit):
            path.unlink(missing_ok=True)  # an interrupt is raised after the call, which may have made the file
            raise
        # between creating and locking, another writer may have taken the file for an abandoned one
        if not lock(descriptor) or _same(descriptor, path):
            return descriptor, path
        os.close(descriptor)


def hint_for(error: OSError) -> str | None:
    """What to do when a file cannot be written: None unless the disk is full, or a limit is reached."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return "free some space or choose an output path on another disk" if full else None


def _stem(target: Path) -> str:
    return os.fsdecode(os.fsencode(target.name)[:200])  # names of files end at 255 bytes


def unfinished_names(target: Path, *, folders: bool = False) -> Iterator[Path]:
    """Hidden files beside `target` that are named as unfinished ones of it, or `folders` of such names."""
    prefix, suffix = f".{_stem(target)}.", ".tmp"
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(target.parent)):
            middle = entry.name[len(prefix) : -len(suffix)]
            named = entry.name == f"{prefix}{middle}{suffix}" and len(middle) == 8
            kind = entry.is_dir if folders else entry.is_file
            if named and set(middle) <= set("0123456789abcdef") and kind(follow_symlinks=False):
                yield Path(entry.path)


def _remove_abandoned(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return  # not ours to remove, or gone
    try:
        if lock(descriptor, wait=False) and _same(descriptor, path):
            path.unlink(missing_ok=True)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def lock(descriptor: int, *, wait: bool = True) -> bool:
    """Whether the file is now locked by us; False also where the system or the file system has no locks."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
