"""Sums so far, on disk, so that a long run goes on where it stopped.

A line of JSON (`Head`), then for each tensor its sums, float64, and counts, int64, little-endian. A file is replaced as
a whole, so a kill leaves the one before. It is written after a chunk, but not so often that writing takes more than a
twentieth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hf2q.errors import QualityError, SourceError
from hf2q.formats.whole import write_whole
from hf2q.quality.imatrix.sums import Sums, Total
from hf2q.types import Record

FORMAT = "hf2q importance sums 1"
SHARE = 20
"""Time between two writings, in times that one takes."""
MAX_HEAD = 64 << 20


class Head(Record, frozen=True, kw_only=True):
    """What the file is about (`key`), how many chunks are in the sums, and each tensor's name, n and width."""

    format: str
    key: Mapping[str, Any]
    chunks: int
    tensors: tuple[tuple[str, int, int], ...]


class State:
    """`sums` of the first `done` chunks. Without a path nothing is kept on disk.

    Errors: QualityError for a file of another run, and for what is none; SourceError when it cannot be read.
    """

    def __init__(self, path: Path | None, key: Mapping[str, Any]) -> None:
        self.sums, self.done = Sums(), 0
        self._path, self._key = path, dict(key)
        self._next = -inf
        if path is not None and path.exists():
            self._read(path)

    def advance(self, *, last: bool = False) -> None:
        """One more chunk is in the sums; the `last` is written in any case. Errors: WriteError."""
        self.done += 1
        started = time.monotonic()
        if self._path is None or (started < self._next and not last):
            return
        write_whole(str(self._path), self._parts())
        ended = time.monotonic()
        self._next = ended + SHARE * (ended - started)

    def _parts(self) -> Iterator[bytes]:
        totals = self.sums.totals
        head = Head(
            format=FORMAT,
            key=self._key,
            chunks=self.done,
            tensors=tuple((name, *total.sums.shape) for name, total in totals.items()),
        )
        yield msgspec.json.encode(head) + b"\n"
        for total in totals.values():
            yield total.sums.astype("<f8").tobytes()
            yield total.counts.astype("<i8").tobytes()

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                line = file.readline(MAX_HEAD)
                head = _head(path, line)
                self._same(path, head.key)
                need = sum(8 * n * (width + 1) for _, n, width in head.tensors)
                if path.stat().st_size != len(line) + need:
                    raise _foreign(path, f"{path.stat().st_size} bytes, expected {len(line) + need}")
                for name, n, width in head.tensors:
                    sums = np.frombuffer(file.read(8 * n * width), "<f8").reshape(n, width).astype(np.float64)
                    counts = np.frombuffer(file.read(8 * n), "<i8").astype(np.int64)
                    self.sums.totals[name] = Total(sums=sums, counts=counts)
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {error}") from error
        self.done = head.chunks
        self.sums.check()

    def _same(self, path: Path, found: Mapping[str, Any]) -> None:
        other = sorted(name for name in {*found, *self._key} if found.get(name) != self._key.get(name))
        if other:
            name = other[0]
            raise QualityError(
                f"{path} holds sums of another run: {name} is {found.get(name)!r} there, {self._key.get(name)!r} here",
                hint="take another file, or remove it to begin anew",
            )


def _head(path: Path, line: bytes) -> Head:
    try:
        head = msgspec.json.decode(line, type=Head)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _foreign(path, str(error)) from error
    if head.format != FORMAT or head.chunks < 0 or any(min(n, width) < 1 for _, n, width in head.tensors):
        raise _foreign(path, f"of the format {head.format!r}")
    return head


def _foreign(path: Path, why: str) -> QualityError:
    return QualityError(f"{path} holds no sums of an importance matrix ({why})", hint="take another file, or remove it")
