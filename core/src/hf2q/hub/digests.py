"""How contents are checked: files in LFS by SHA-256, files in Git by the SHA-1 of the blob.

The SHA-1 of a Git blob is that of ``blob LENGTH``, a zero byte, and the contents. Source: git, Documentation/
gitformat-pack and object-file.c (`format_object_header`).
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from hf2q.types import Record

CHUNK = 1 << 20


class Expected(Record, frozen=True, kw_only=True):
    """What the Hub says of a file: `size` in bytes (None when it does not say), digests in hexadecimal, "" likewise."""

    path: str
    size: int | None = None
    sha256: str = ""
    git: str = ""

    @property
    def verifiable(self) -> bool:
        """Whether there is a size and a digest to check against."""
        return self.size is not None and bool(self.sha256 or self.git)

    @property
    def key(self) -> str:
        """Name of the contents in the cache; only for what is `verifiable`."""
        return f"sha256-{self.sha256}" if self.sha256 else f"git-{self.git}"


class Found(Record, frozen=True, kw_only=True):
    """What contents turned out to be."""

    size: int
    sha256: str
    git: str

    def differs(self, expected: Expected) -> tuple[str, str] | None:
        """Expected and found, in words, where they differ; None when the contents are what was announced."""
        for name, wanted, own in (
            ("bytes", str(expected.size), str(self.size)),
            ("SHA-256", expected.sha256, self.sha256),
            ("Git blob", expected.git, self.git),
        ):
            if wanted and wanted != own:
                return f"{name} {wanted}", f"{name} {own}"
        return None


class Digest:
    """Takes contents of a known `size` piece by piece."""

    def __init__(self, size: int) -> None:
        self._size = 0
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)

    def update(self, data: bytes | memoryview) -> None:
        """The next piece."""
        self._size += len(data)
        self._sha256.update(data)
        self._git.update(data)

    @property
    def size(self) -> int:
        """Bytes taken so far."""
        return self._size

    def found(self) -> Found:
        """Of everything taken so far."""
        return Found(size=self._size, sha256=self._sha256.hexdigest(), git=self._git.hexdigest())


def digest_of(path: Path, size: int) -> Digest:
    """Of the contents of a local file; `size` is that of the whole file, when this one is a part. Errors: OSError."""
    digest = Digest(size)
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            digest.update(data)
    return digest


def is_sha256(text: object) -> bool:
    """Whether it is a SHA-256 in hexadecimal."""
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) is not None


def is_sha1(text: object) -> bool:
    """Whether it is a SHA-1 in hexadecimal."""
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{40}", text) is not None
