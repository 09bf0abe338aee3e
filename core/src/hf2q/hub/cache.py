"""The folder in which downloads of one repository are kept.

::

    ORG--NAME/
        lock                          held while files are added
        contents/sha256-…  git-…      verified contents, by the digest that the hub names
        contents/sha256-….json        what they turned out to be, and how the file looked then: see `Record`
        contents/sha256-….part        what has arrived of contents that are not complete
        revisions/main                the commit that a revision named last, for offline use
        commits/COMMIT/files.json     the list of files, for offline use
        commits/COMMIT/NAME/…         a view of the commit: links to contents, under the names of the repository

A checkpoint is opened at its view, whose last folder is the repository's name, as in a clone: names that are derived
from the folder are the same. Contents that several commits share are there once. Nothing carries the name of its digest
before it was verified; a file that changed since is verified again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from hf2q.errors import HubError, WriteError
from hf2q.hub.api import Listing
from hf2q.hub.digests import Expected, Found, digest_of
from hf2q.types import Record

log = logging.getLogger(__name__)


class Verified(Record, frozen=True, kw_only=True):
    """Contents that were verified, and size and time (ns) of the file then: while these hold, they still are."""

    found: Found
    modified: int


class Cache:
    """Of one repository. Errors of every method that writes: WriteError."""

    def __init__(self, root: Path, repo: str) -> None:
        self.folder = root / repo.replace("/", "--")
        self.contents = self.folder / "contents"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from adding files; the lock goes with the process, however it ends."""
        with writing(self.folder):
            self.contents.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.warning("another process downloads to %s; waiting for it", self.folder)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def part(self, expected: Expected) -> Path:
        """Where incomplete contents are."""
        return self.contents / f"{expected.key}.part"

    def verified(self, expected: Expected) -> Found | None:
        """What verified contents are, None when they are not here. Contents that changed are read again; those that
        are not what they should be any more are removed.
        """
        path = self.contents / expected.key
        try:
            status = path.stat()
        except OSError:
            return None
        with contextlib.suppress(OSError, msgspec.DecodeError):
            record = msgspec.json.decode(path.with_name(f"{path.name}.json").read_bytes(), type=Verified)
            same = record.modified == status.st_mtime_ns and record.found.size == status.st_size
            if same and record.found.differs(expected) is None:
                return record.found
        try:
            found = digest_of(path, status.st_size).found()
        except OSError as error:
            raise HubError(f"{path} cannot be read: {error.strerror}") from error
        if (other := found.differs(expected)) is not None:
            log.warning("%s (%s) was damaged: expected %s, found %s; it is removed", path, expected.path, *other)
            with writing(path):
                path.unlink(missing_ok=True)
            return None
        self._record(path, found)
        return found

    def keep(self, expected: Expected, found: Found) -> None:
        """Give complete, verified contents their name."""
        path = self.contents / expected.key
        part = self.part(expected)
        with writing(path):
            part.replace(path)
        self._record(path, found)

    def remember(self, listing: Listing) -> None:
        """What a revision names and which files there are, for offline use."""
        folder = self.folder / "commits" / listing.commit
        with writing(folder):
            replace_file(folder / "files.json", msgspec.json.encode(listing))
            replace_file(self._revision(listing.revision), f"{listing.commit}\n".encode())

    def recalled(self, revision: str) -> Listing | None:
        """What was remembered of a revision, or of a commit by the beginning of its name; None when nothing was."""
        commits = self.folder / "commits"
        try:
            commit = self._revision(revision).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            found = sorted(path.name for path in commits.glob("*") if path.name.startswith(revision))
            if len(found) != 1 or len(revision) < 4:
                return None
            commit = found[0]
        try:
            listing = msgspec.json.decode((commits / commit / "files.json").read_bytes(), type=Listing)
        except (OSError, msgspec.DecodeError):
            return None
        return listing if listing.commit == commit else None

    def view(self, listing: Listing, files: Iterable[Expected]) -> Path:
        """The folder of a commit, with at least these of its files, all verified, as links to their contents.

        Links that are there stay: another process may be reading through them.
        """
        folder = self.folder / "commits" / listing.commit / listing.canonical.rpartition("/")[2]
        wanted = {one.path: self.contents / one.key for one in files}
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in wanted.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                target = os.path.relpath(content, path.parent)
                if path.is_symlink() and str(path.readlink()) == target:
                    continue
                fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
                fresh.unlink(missing_ok=True)
                fresh.symlink_to(target)
                fresh.replace(path)
        return folder

    def _record(self, path: Path, found: Found) -> None:
        with writing(path):
            record = Verified(found=found, modified=path.stat().st_mtime_ns)
            replace_file(path.with_name(f"{path.name}.json"), msgspec.json.encode(record))

    def _revision(self, revision: str) -> Path:
        return self.folder / "revisions" / quote(revision, safe="")


def listing_with(listing: Listing, known: Mapping[str, Expected]) -> Listing:
    """A listing in which more is known about some files."""
    return msgspec.structs.replace(listing, files={**listing.files, **known})


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file in one step. Errors: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_bytes(data)
    fresh.replace(path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system refuses into a WriteError that names the place."""
    try:
        yield
    except OSError as error:
        raise WriteError(
            f"{error.filename or path} cannot be written: {error.strerror}",
            hint="HF2Q_CACHE_DIR names another folder for downloads",
        ) from error
