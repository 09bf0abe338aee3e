"""SHA-256 of files: whole ones, several in the background, and of what is being written. `hashlib` releases the GIL."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from hf2q.errors import SourceError
from hf2q.formats.files import changed, open_regular
from hf2q.types import Record

CHUNK = 4 << 20
"""Bytes read at a time: large against the cost of a call, small against memory."""


class FileDigest(Record, frozen=True, kw_only=True):
    """Size in bytes, and SHA-256 as 64 hexadecimal digits."""

    size: int
    sha256: str


class Stopped(Exception):
    """Nobody waits for the digest any more."""


def digest_file(path: str | os.PathLike[str], stop: threading.Event | None = None) -> FileDigest:
    """Read a file once. Errors: MissingFileError, SourceError; FormatError when it changes meanwhile."""
    name = os.fspath(path)
    descriptor, size = open_regular(name)
    try:
        before = os.fstat(descriptor).st_mtime_ns
        found, done = hashlib.sha256(), 0
        buffer = bytearray(min(CHUNK, max(1, size)))
        view = memoryview(buffer)
        while count := os.readv(descriptor, [buffer]):
            if stop is not None and stop.is_set():
                raise Stopped
            found.update(view[:count])
            done += count
        if (done, before) != (size, os.fstat(descriptor).st_mtime_ns):
            raise changed(name)
    except OSError as error:
        raise SourceError(f"{name} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return FileDigest(size=size, sha256=found.hexdigest())


class BackgroundDigests:
    """Digests of several files, computed one after the other beside other work; used in a `with` statement.

    files  by the name under which the digest is asked for;  known  digests that need no reading

    Leaving the statement stops what is still going on.
    """

    def __init__(self, files: Mapping[str, Path], known: Mapping[str, FileDigest] | None = None) -> None:
        self._known = {name: digest for name, digest in (known or {}).items() if name in files}
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="digest")
        self._running = {
            name: self._pool.submit(digest_file, path, self._stop)
            for name, path in files.items()
            if name not in self._known
        }

    def result(self) -> dict[str, FileDigest]:
        """All digests by name, sorted; waits for them. Errors: what `digest_file` raises."""
        found = self._known | {name: future.result() for name, future in self._running.items()}
        return dict(sorted(found.items()))

    def __enter__(self) -> BackgroundDigests:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)


class WrittenDigest:
    """The digest of bytes that come in pieces, computed in a thread beside the writing of the next piece.

    One piece waits at most, so no memory piles up. A piece must not change after it was given.
    """

    def __init__(self) -> None:
        self._found = hashlib.sha256()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="digest")
        self._last: Future[None] | None = None

    def update(self, data: bytes | memoryview) -> None:
        """The next piece: C-contiguous bytes."""
        if self._last is not None:
            self._last.result()
        self._last = self._pool.submit(self._found.update, data)

    def hexdigest(self) -> str:
        """64 hexadecimal digits of all that came; nothing can come after it."""
        self.close()
        return self._found.hexdigest()

    def close(self) -> None:
        """End the thread. Safe at any time, and more than once."""
        self._pool.shutdown()
