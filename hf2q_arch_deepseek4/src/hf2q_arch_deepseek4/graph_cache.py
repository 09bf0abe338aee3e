"""What a sequence remembers of one block: a window of keys, compressed entries, and what becomes the next entry.

All of it can be cut back to an earlier position as long as the rows that the next token needs are still there. Those of
the last call always are: rows are dropped only when further ones come. So tokens that were tried and refused can be
taken back, whatever the position; how much further a sequence can go back depends on when rows were last dropped, and
`can_trim` says so. Entries are never dropped, and cutting them back needs no boundary of a block: an entry belongs to
the position at which its last token came in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.backends.ops import Array, Ops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Saved = Mapping[str, NDArray[Any]]

STEP = 64
"""Room is a multiple of this many rows, and this many more than needed are kept before old ones are dropped."""


class Rows:
    """Vectors in the order they came, in a buffer (1, S, D) that grows by half when full.

    keep  how many of the latest are needed when the next ones come; None for all
    length  number that came in;  first  place of the earliest that is still there
    """

    def __init__(self, ops: Ops, keep: int | None = None) -> None:
        self._ops, self._keep = ops, keep
        self._buffer: Array | None = None
        self.first = 0
        self.length = 0

    def append(self, new: Array) -> Array:
        """Add (T, 1, D); returns all that are kept (1, S, D), the earliest of them number `first`."""
        self._drop()
        start = self.length - self.first
        self._buffer = self._grown(new.shape[-1], start, start + new.shape[0])
        self._buffer = self._ops.write(self._buffer, new, start)
        self.length += new.shape[0]
        return self._buffer[:, : self.length - self.first]

    def kept(self) -> Array | None:
        """All that are kept (1, S, D); None when there are none."""
        return (
            None if self._buffer is None or self.length == self.first else self._buffer[:, : self.length - self.first]
        )

    def _grown(self, size: int, start: int, end: int) -> Array:
        room = 0 if self._buffer is None else self._buffer.shape[1]
        if self._buffer is not None and end <= room:
            return self._buffer
        grown = self._ops.zeros((1, -(-max(end, room + room // 2) // STEP) * STEP, size), grows=True)
        if self._buffer is not None and start:
            grown = self._ops.write(grown, self._buffer[:, :start].transpose(1, 0, 2), 0)
        return grown

    def _drop(self) -> None:
        """Move what is needed to the front, once it is the smaller part."""
        held = self.length - self.first
        if self._keep is None or held <= 2 * self._keep + STEP or self._buffer is None:
            return
        if self._keep:
            needed = self._ops.copy(self._buffer[:, held - self._keep : held].transpose(1, 0, 2))
            self._buffer = self._ops.write(self._buffer, needed, 0)
        self.first = self.length - self._keep

    def can_trim(self, length: int) -> bool:
        """Whether all that would be needed after the first `length` is there."""
        return length == 0 or self._keep is None or self.first == 0 or length - self.first >= self._keep

    def trim(self, length: int) -> None:
        """Forget those from number `length` on; their room is kept for others."""
        self.length = min(self.length, length)
        if length == 0:
            self.first = 0

    def copy(self) -> Rows:
        """Independent ones with the same content."""
        other = Rows(self._ops, self._keep)
        other.first, other.length = self.first, self.length
        other._buffer = None if self._buffer is None else self._ops.copy(self._buffer)
        return other

    def arrays(self) -> Iterator[Array]:
        """The buffer."""
        if self._buffer is not None:
            yield self._buffer

    def save(self) -> dict[str, NDArray[Any]]:
        """What is kept, without spare room."""
        saved: dict[str, NDArray[Any]] = {"first": np.array(self.first), "length": np.array(self.length)}
        kept = self.kept()
        if kept is not None:
            saved["rows"] = self._ops.to_numpy(kept)
        return saved

    def restore(self, saved: Saved) -> None:
        """Take over what `save` gave."""
        self.first = self.length = int(saved["first"])
        self._buffer = None
        if "rows" in saved:
            rows = self._ops.asarray(saved["rows"]).transpose(1, 0, 2)
            buffer = self._grown(rows.shape[-1], 0, rows.shape[0])
            self._buffer = self._ops.write(buffer, rows, 0)
            self.length += rows.shape[0]


class Pool:
    """Of one compressor: rows of keys and gates that are still needed, and the entries made so far.

    ratio    tokens of an entry
    overlap  whether an entry is made of the tokens of the one before as well
    """

    def __init__(self, ops: Ops, ratio: int, overlap: bool) -> None:
        self._ops, self.ratio, self._overlap = ops, ratio, overlap
        self.pending = Rows(ops, (2 if overlap else 1) * ratio - 1)
        self.entries = Rows(ops)

    def copy(self) -> Pool:
        """An independent one with the same content."""
        other = Pool(self._ops, self.ratio, self._overlap)
        other.pending, other.entries = self.pending.copy(), self.entries.copy()
        return other


class BlockCache:
    """Follows `hf2q.backends.cache.Part`: the keys of a sliding window, and the pools of a block's compressors."""

    def __init__(self, ops: Ops, window: int, pools: Sequence[Pool] = ()) -> None:
        self._ops, self._window = ops, window
        self.window = Rows(ops, window - 1)
        self.pools = tuple(pools)

    def _all(self) -> Iterator[tuple[str, Rows, int]]:
        """Name, rows, and how many tokens there are to each."""
        yield "window", self.window, 1
        for place, pool in enumerate(self.pools):
            yield f"{place}.pending", pool.pending, 1
            yield f"{place}.entries", pool.entries, pool.ratio

    def can_trim(self, position: int) -> bool:
        """Whether the window and the unfinished entries before `position` are still there."""
        return all(rows.can_trim(position // ratio) for _, rows, ratio in self._all())

    def trim(self, position: int) -> None:
        """Forget everything from `position` on."""
        for _, rows, ratio in self._all():
            rows.trim(position // ratio)

    def copy(self) -> BlockCache:
        """An independent one with the same content."""
        other = BlockCache(self._ops, self._window, [pool.copy() for pool in self.pools])
        other.window = self.window.copy()
        return other

    def arrays(self) -> Iterator[Array]:
        """All buffers."""
        for _, rows, _ in self._all():
            yield from rows.arrays()

    def save(self) -> Saved:
        """All content by name."""
        return {f"{name}.{key}": array for name, rows, _ in self._all() for key, array in rows.save().items()}

    def restore(self, saved: Saved) -> None:
        """Take over what `save` gave."""
        for name, rows, _ in self._all():
            prefix = f"{name}."
            rows.restore({key[len(prefix) :]: array for key, array in saved.items() if key.startswith(prefix)})
