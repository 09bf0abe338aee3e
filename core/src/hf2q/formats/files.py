"""Opening files that come from elsewhere: only regular files, with errors that say what to do.

Shared by the readers of `hf2q.formats`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from hf2q.errors import FormatError, MissingFileError, SourceError

_LFS = b"version https://git-lfs"


class Identity(NamedTuple):
    """What tells that a file is still the one whose header was read."""

    device: int
    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, descriptor: int) -> Identity:
        """The identity of an open file."""
        found = os.fstat(descriptor)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def open_regular(path: str) -> tuple[int, int]:
    """Open `path` for reading and return (file descriptor, size in bytes). The caller closes the descriptor.

    Anything but a regular file is refused before it is opened, because opening a pipe would wait for its other end.

    Errors: MissingFileError when there is no such file, SourceError when it cannot be opened.
    """
    try:
        mode = Path(path).stat().st_mode
        if not stat.S_ISREG(mode):
            raise SourceError(f"{path} is {_kind(mode)}, expected a regular file")
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise MissingFileError(f"{path} does not exist") from None
    except ValueError as error:
        raise MissingFileError(f"{path!r} cannot be the name of a file: {error}") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error.strerror}") from error
    return descriptor, os.fstat(descriptor).st_size


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    other = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    return f"not a regular file but {other}"


def read_exactly(descriptor: int, target: memoryview, offset: int, path: str) -> None:
    """Fill `target` (bytes) from `offset` on. Thread-safe.

    Errors: SourceError; FormatError when the file ends early, which means that it changed after its size was taken.
    """
    done = 0
    while done < len(target):
        try:
            count = os.preadv(descriptor, [target[done:]], offset + done)
        except OSError as error:
            raise SourceError(f"{path} cannot be read at byte {offset + done}: {error.strerror}") from error
        if count == 0:
            raise changed(path, f"it ends at byte {offset + done}, expected data up to byte {offset + len(target)}")
        done += count


def read_bytes(descriptor: int, count: int, offset: int, path: str) -> bytes:
    """`count` bytes from `offset` on; errors as `read_exactly`. The caller has checked that the file is that long."""
    buffer = bytearray(count)
    read_exactly(descriptor, memoryview(buffer), offset, path)
    return bytes(buffer)


def read_unchanged(path: str, identity: Identity, target: memoryview, offset: int) -> None:
    """Fill `target` (bytes) from `offset` on of the file that has `identity`. Thread-safe.

    The file is opened for this read, so nothing has to be closed later and threads do not meet. It is looked at after
    the read: a change before or meanwhile shows, where a look before would miss one in between.

    Errors: those of `open_regular`; FormatError when the file is another one, or has changed.
    """
    descriptor, _ = open_regular(path)
    try:
        read_exactly(descriptor, target, offset, path)
        if Identity.of(descriptor) != identity:
            raise changed(path)
    finally:
        os.close(descriptor)


def changed(path: str, how: str = "") -> FormatError:
    """The error of a file that is not what it was a moment ago; `how` says more."""
    return FormatError(f"{path} changed while it was being read{how and ': '}{how}", hint="start again")


def refuse_lfs_pointer(start: bytes, path: str) -> None:
    """Raise MissingFileError when `start`, the beginning of a file, shows that it is a git-lfs pointer."""
    if start.startswith(_LFS):
        raise MissingFileError(
            f"{path} is a git-lfs pointer, a few lines of text instead of the file itself",
            hint="run `git lfs pull` in that repository, or download the file again",
        )
