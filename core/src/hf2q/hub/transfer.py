"""Bytes of a hub into the cache: resumed where they broke off, verified before they count."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

from hf2q.errors import HubError, WriteError
from hf2q.hub.answers import Asked, ask
from hf2q.hub.api import check_commit
from hf2q.hub.cache import Cache, writing
from hf2q.hub.client import Client, Stopped, Trouble, place
from hf2q.hub.digests import CHUNK, Digest, Expected, Found, digest_of
from hf2q.types import Record

if TYPE_CHECKING:
    from httpx import Response

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Files that are transferred at the same time."""

ATTEMPTS = 2
"""Times that a file is taken from its beginning when its bytes are not what was announced."""


class Job(Record, frozen=True, kw_only=True):
    """What a transfer needs to know.

    file     what to ask for, by a path
    moved    called with path and number of bytes after each piece; negative when bytes were dropped
    """

    file: Callable[[str], Asked]
    moved: Callable[[str, int], None]


def fetch_all(cache: Cache, client: Client, files: Sequence[Expected], job: Job) -> None:
    """Have every one of `files` verified in the cache. The largest come first.

    Errors: WriteError when the disk has no room, before anything is transferred; those of `fetch`.
    """
    alone = {one.key: one for one in files}.values()  # the same contents may have several names
    check_room(cache, tuple(alone))
    with ThreadPoolExecutor(AT_ONCE, "hf2q-download") as team:
        ordered = sorted(alone, key=lambda one: -(one.size or 0))
        futures = [team.submit(fetch, cache, client, one, job) for one in ordered]
        try:
            done, left = wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:  # an interrupt
            client.stopped.set()
            team.shutdown(wait=False, cancel_futures=True)
            raise
        if left:
            client.stopped.set()
            team.shutdown(wait=False, cancel_futures=True)
    for future in done:
        if (error := future.exception()) is not None and not isinstance(error, Stopped):
            raise error


def check_room(cache: Cache, files: Sequence[Expected]) -> None:
    """Refuse when the disk has no room for what is still to come. Errors: WriteError with need, place and room."""
    there = {one.path: _size(cache.part(one)) for one in files}
    needed = sum(max(0, (one.size or 0) - there[one.path]) for one in files)
    with writing(cache.contents):
        cache.contents.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache.contents).free
    if needed > free:
        raise WriteError(
            f"the download needs {needed:,} bytes, {cache.contents} has {free:,} free",
            hint="free some space, or choose another disk with HF2Q_CACHE_DIR",
        )


def fetch(cache: Cache, client: Client, expected: Expected, job: Job) -> Found:
    """Have one file verified in the cache; what is there of it is used.

    Errors: HubError when the bytes are not what was announced (twice), or do not come; WriteError when they cannot be
    kept; AccessError, MissingFileError; Stopped.
    """
    part = cache.part(expected)
    wrong = ("", "")
    for _ in range(ATTEMPTS):
        digest = _taken_up(part, expected)
        job.moved(expected.path, digest.size)
        if digest.size < (expected.size or 0) or not part.exists():
            digest = _transfer(part, client, expected, job, digest)
        found = digest.found()
        other = found.differs(expected)
        if other is None:
            with writing(part):
                _sync(part)
            cache.keep(expected, found)
            return found
        with writing(part):
            part.unlink(missing_ok=True)
        job.moved(expected.path, -found.size)
        log.warning("%s: expected %s, found %s; discarded", expected.path, *other)
        wrong = other
    raise HubError(
        f"{expected.path} is not what the hub announced: expected {wrong[0]}, found {wrong[1]} ({ATTEMPTS} times)",
        hint="the file on the hub, or a proxy on the way, is damaged; nothing was converted",
    )


def _transfer(part: Path, client: Client, expected: Expected, job: Job, start: Digest) -> Digest:
    state, asked = start, job.file(expected.path)

    def once() -> None:
        nonlocal state
        before = state.size
        headers = {"Range": f"bytes={before}-"} if before else {}
        with client.answer(asked.url, headers) as reply:
            check_commit(client.commits(reply), asked)
            if before and not _continues(reply, before):  # a server that knows no ranges begins anew
                job.moved(expected.path, -before)
                state, before = Digest(expected.size or 0), 0
            try:
                _receive(part, reply, expected, job, client, state)
            except Trouble as trouble:
                far = state.size - before >= CHUNK
                raise Trouble(trouble.message, trouble.wait, progress=far) from trouble

    ask(once, client, asked)
    return state


def _continues(reply: Response, position: int) -> bool:
    if reply.status_code != 206:
        return False
    text = reply.headers.get("Content-Range", f"bytes {position}-")  # left out, it shows in the digest at the latest
    match = re.match(r"bytes (\d+)-", text)
    if match is None or int(match[1]) != position:
        raise HubError(f"{place(reply.url)}: asked for bytes from {position} on, the answer is {text[:80]!r}")
    return True


def _receive(part: Path, reply: Response, expected: Expected, job: Job, client: Client, digest: Digest) -> None:
    """Append the answer to the file, which holds as many bytes as `digest` has taken.

    Errors: Trouble when it breaks off. An answer that is complete and yet too short is no such case: `fetch` sees it.
    """
    from huggingface_hub.errors import HTTPError  # that of its session

    size = expected.size or 0
    complete = "Content-Length" in reply.headers  # then the session sees when something is missing
    with writing(part), part.open("ab") as file:
        file.truncate(digest.size)
        try:
            for data in reply.iter_raw():
                if client.stopped.is_set():
                    raise Stopped
                file.write(data)
                digest.update(data)
                job.moved(expected.path, len(data))
                if digest.size > size:
                    break  # more than there should be: no need to see how much
        except HTTPError:
            complete = False
    if digest.size < size and not complete:
        raise Trouble(f"{expected.path}: the connection ended after {digest.size:,} of {size:,} bytes")


def _taken_up(part: Path, expected: Expected) -> Digest:
    """The digest of what is there already; none of it when that is more than the file has."""
    size = expected.size or 0
    with writing(part):
        if _size(part) > size:
            part.unlink(missing_ok=True)
        return digest_of(part, size) if part.exists() else Digest(size)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
