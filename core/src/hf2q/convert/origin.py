"""Where a checkpoint came from, when it came from a hub: what a receipt has to say about its source."""

from __future__ import annotations

from hf2q.types import Record


class OriginFile(Record, frozen=True, kw_only=True):
    """One file that was taken from the repository, as it lies on this disk.

    path    relative to the repository, with ``/``
    size    in bytes
    sha256  of the local bytes, 64 hexadecimal digits
    git     SHA-1 of the Git blob that the bytes were checked against; "" for a file in LFS, where it was `sha256`
    """

    path: str
    size: int
    sha256: str
    git: str = ""


class Origin(Record, frozen=True, kw_only=True):
    """The identity of a checkpoint on a hub: one commit of one repository, and the files taken from it.

    asked      the source as the user wrote it: an id or a URL
    repo       the id in it (``org/name``);  canonical  the id that the hub answered with, which differs after a rename
    revision   branch, tag or commit that was asked for; ``main`` when none was
    commit     what that was resolved to before anything was transferred: 40 (or 64) hexadecimal digits
    endpoint   address of the hub, without ``/`` at the end
    files      everything that was taken, sorted by path; each was checked against the hub's digest. Without weights
               after a dry run, which takes their headers only
    """

    asked: str
    repo: str
    canonical: str
    revision: str
    commit: str
    endpoint: str
    files: tuple[OriginFile, ...]
