"""Writing a folder so that its name never belongs to half of it: hidden beside its target until it is whole.

A hidden folder holds a file that its writer locks; the next writer of the same target removes those that are not
locked any more, as `hf2q.formats.temporary` does with files.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Collection
from pathlib import Path

from hf2q.errors import WriteError
from hf2q.formats.temporary import hint_for, lock, unfinished_names

log = logging.getLogger(__name__)

LOCK = ".lock"


class UnfinishedFolder:
    """A new hidden folder beside `target`: files go into `path`, then `publish` or `remove`.

    Errors: WriteError for everything about the disk; after it nothing is left.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self._descriptor: int | None = None
        if not target.parent.is_dir():
            raise WriteError(f"{target} cannot be written: the folder {target.parent} does not exist")
        try:
            for stale in unfinished_names(target, folders=True):
                _remove_abandoned(stale)
            self.path = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
            self.path.mkdir()
            self._descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            lock(self._descriptor)
            if not (self.path / LOCK).exists():  # taken for an abandoned one before it was locked
                raise WriteError(f"{target} is being written by another program as well")
        except OSError as error:
            self.remove()
            raise self.failed(error) from error
        except BaseException:
            self.remove()
            raise

    def publish(self) -> None:
        """Give the folder its name; a folder that has it is replaced, whether it may be is the caller's decision.

        There is a moment in which neither has the name, but none in which a part of one has.
        """
        old = self.target.parent / f".{self.target.name}.{secrets.token_hex(4)}.tmp"
        moved = False
        try:
            _sync(self.path)
            (self.path / LOCK).unlink()
            if os.path.lexists(self.target):
                self.target.rename(old)
                moved = True
            self.path.rename(self.target)
        except OSError as error:
            if moved:
                old.rename(self.target)
            self.remove()
            raise self.failed(error) from error
        self._close()
        _sync(self.target.parent)
        if moved:
            _discard(old)

    def remove(self) -> None:
        """Remove the hidden folder, if it is there."""
        path = getattr(self, "path", None)
        if path is not None and path.exists():
            _discard(path)
        self._close()

    def failed(self, error: OSError) -> WriteError:
        """What to raise for an error of the system."""
        return WriteError(f"{self.target} cannot be written: {error.strerror}", hint=hint_for(error))

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def strangers(folder: Path, known: Collection[str]) -> list[str]:
    """What is in a folder besides files of these names: what replacing it would destroy."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name not in known or not entry.is_file())


def _remove_abandoned(path: Path) -> None:
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR)
    except OSError:
        return  # of another maker, or already gone
    try:
        if lock(descriptor, wait=False):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _discard(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        log.warning("the unfinished or replaced folder %s could not be removed: %s", path, error.strerror)


def _sync(folder: Path) -> None:
    """Make names durable. What is in the files is, by now, so a file system that cannot is only noted."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        log.info("the folder %s could not be flushed: %s", folder, error.strerror)
