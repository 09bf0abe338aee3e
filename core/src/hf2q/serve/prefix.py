"""Prefix reuse: what was computed for the beginning of one prompt serves others that begin with the same tokens.

A `Line` is the state after some tokens, with those tokens themselves, and with the positions to which it can go back.
Whether two prompts begin alike is decided by comparing all their tokens, and the digests of their images. A line in
the store never changes: who goes on from it gets a copy, or takes it out.

Keys and values can be cut back to any position. A recurrent state, and what has left a sliding window, cannot: there
checkpoints say where a line can be resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hf2q.backends.cache import Cache, Checkpoint, KVCache
from hf2q.serve.budget import bytes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.backends.media import PlacedImage

LEAST = 16
"""Tokens below which going on from a line is not worth the trouble."""

MOST_CHECKPOINTS = 8
"""Of a line, besides those at turns of a conversation."""

MOST_LINES = 256
"""In a store."""

OVERHEAD = 1024
"""Bytes that a line counts for besides its arrays."""


class Picture(NamedTuple):
    """An image among the tokens of a line: their positions, and what it shows."""

    start: int
    end: int
    digest: bytes


def pictures(images: Iterable[PlacedImage]) -> tuple[Picture, ...]:
    """Those of a request."""
    return tuple(Picture(image.place, image.end, _digest(image)) for image in images)


def _digest(placed: PlacedImage) -> bytes:
    image = placed.image
    found = hashlib.blake2b(repr(image.grid).encode(), digest_size=32)
    for array in (image.embeddings, *image.deepstack):
        values = np.ascontiguousarray(np.asarray(array))
        found.update(f"{values.dtype}{values.shape}".encode())
        found.update(values.data)
    return found.digest()


class Line:
    """Tokens, and the state after them.

    ids          int32 (N,);  images  those among them
    cache        the state, at position N
    checkpoints  states on the way that `cache` cannot be trimmed to, by position
    stable       from here on the tokens belong to this one request: another that has the same up to here goes on
                 with the same conversation
    """

    def __init__(
        self,
        ids: NDArray[np.int32],
        images: Sequence[Picture],
        cache: Cache,
        checkpoints: Sequence[Checkpoint] = (),
        *,
        stable: int,
    ) -> None:
        self.ids, self.images, self.cache = ids, tuple(images), cache
        self.checkpoints, self.stable = tuple(checkpoints), stable

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        checkpoints = sum(map(checkpoint_bytes, self.checkpoints))
        return bytes_of(self.cache) + checkpoints + int(self.ids.nbytes) + OVERHEAD

    def common(self, ids: NDArray[np.int32], images: Sequence[Picture]) -> int:
        """How many tokens both begin with."""
        return common(self.ids, self.images, ids, images)

    def resumable(self, most: int) -> int:
        """The last position up to `most` that can be gone on from; 0 for none."""
        if most >= len(self.ids) or self.cache.can_trim(most):
            return min(most, len(self.ids))
        return max((checkpoint.position for checkpoint in self.checkpoints if checkpoint.position <= most), default=0)

    def copied(self, position: int) -> Cache:
        """An independent state at a resumable position."""
        if position == self.cache.position:
            return self.cache.copy()
        checkpoint = self._checkpoint(position)
        if checkpoint is None:
            copy = Cache([_head(part, position) for part in self.cache.parts])
            copy.images = tuple(image for image in self.cache.images if image.end <= position)
        else:
            pairs = zip(self.cache.parts, checkpoint.parts, strict=True)
            copy = Cache([_head(part, position) if kept is None else kept.copy() for part, kept in pairs])
            copy.images = checkpoint.images
        copy.position = position
        return copy

    def moved(self, position: int) -> Cache:
        """The state itself, brought back to a resumable position. The line is used up."""
        checkpoint = None if position == self.cache.position else self._checkpoint(position)
        if checkpoint is None:
            self.cache.trim(position)
        else:  # later lines may come back to it as well
            parts = tuple(None if kept is None else kept.copy() for kept in checkpoint.parts)
            self.cache.roll_back(checkpoint._replace(parts=parts))
        return self.cache

    def _checkpoint(self, position: int) -> Checkpoint | None:
        if self.cache.can_trim(position):
            return None
        return next(checkpoint for checkpoint in self.checkpoints if checkpoint.position == position)


def _head(part: Any, position: int) -> Any:
    if isinstance(part, KVCache) and part.endless:
        return part.head(position)
    copy = part.copy()
    copy.trim(position)
    return copy


def common(
    ids: NDArray[np.int32], images: Sequence[Picture], other: NDArray[np.int32], others: Sequence[Picture]
) -> int:
    """How many tokens two sequences begin with, never ending inside an image."""
    length = min(len(ids), len(other))
    differ = ids[:length] != other[:length]
    first = int(differ.argmax()) if length else 0
    found = first if length and differ[first] else length
    for index in range(max(len(images), len(others))):
        pair = [*images[index : index + 1], *others[index : index + 1]]
        if len(pair) == 2 and pair[0] == pair[1]:
            if pair[0].start < found < pair[0].end:
                return pair[0].start
        else:
            return min(found, *(image.start for image in pair))
    return found


def needs_checkpoints(cache: Cache) -> bool:
    """Whether there are positions that it cannot be trimmed to."""
    return not all(getattr(part, "endless", False) for part in cache.parts)


def checkpoint_bytes(checkpoint: Checkpoint) -> int:
    """What it takes."""
    return sum(int(array.nbytes) for part in checkpoint.parts if part is not None for array in part.arrays())


def thinned(checkpoints: Sequence[Checkpoint], keep: Iterable[int] = ()) -> list[Checkpoint]:
    """At most `MOST_CHECKPOINTS` that are not at the positions `keep`, spread over all; the last one stays."""
    found, kept = list(checkpoints), set(keep)
    while sum(one.position not in kept for one in found) > MOST_CHECKPOINTS:
        places = [0, *(one.position for one in found)]
        free = [n for n in range(len(found) - 1) if found[n].position not in kept]
        # the one whose neighbours are nearest to each other
        del found[min(free, key=lambda n: places[n + 2] - places[n])]
    return found
