"""What a sequence remembers between calls of a graph: keys and values, recurrent states.

A `Cache` belongs to one sequence and is made of one part for each layer. A graph is called with the caches of all rows
of a batch; the sequences may have different lengths. `positions`, `layers`, `append` and `advance` are what a graph
needs to deal with several at once.

Every kind of part says to which positions it can go back: keys and values to any, those of a sliding window as long as
what the window needs is still there, a recurrent state to none, since it holds no history. All can be copied, and
saved to plain arrays and restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hf2q.backends.ops import Array, Ops
from hf2q.errors import UsageError

if TYPE_CHECKING:
    Saved = Mapping[str, NDArray[Any]]

STEP = 256
"""Room for keys and values is a multiple of this many tokens."""


AT_ONCE = 512
"""Tokens that are usually fed in one call, at most: what a window holds beyond itself."""


def rooms(tokens: int, window: int = 0) -> int:
    """Tokens that a `KVCache` has room for when so many went in, at least: for estimates of memory."""
    held = min(tokens, 2 * window + STEP + AT_ONCE) if window else tokens
    return -(-held // STEP) * STEP


def _grown(room: int, end: int) -> int:
    """The room that a buffer grows to when it must hold `end` tokens."""
    return -(-max(end, room + room // 2) // STEP) * STEP


class Part(Protocol):
    """The memory of one layer."""

    def can_trim(self, position: int) -> bool:
        """Whether the state after the first `position` tokens can be restored by `trim`. Always so for 0."""
        ...

    def trim(self, position: int) -> None:
        """Forget everything from `position` on. Only where `can_trim`."""
        ...

    def copy(self) -> Part:
        """An independent part with the same content."""
        ...

    def arrays(self) -> Iterator[Array]:
        """The arrays it holds."""
        ...

    def save(self) -> Saved:
        """All its content as named arrays, for `restore`."""
        ...

    def restore(self, saved: Saved) -> None:
        """Take the content that another part of the same layer saved."""
        ...


class KVCache:
    """Keys and values of an attention layer, (G, S, D) each, in buffers that grow by half when full.

    With `window`, tokens that no later query can see are dropped from time to time: memory stays bounded, and the
    sequence can be cut back only as far as the rest still fills the window.

    length  tokens that went in;  first  position of the earliest that is kept
    """

    def __init__(self, ops: Ops, window: int = 0) -> None:
        self._ops = ops
        self._window = window
        self._keys: Array | None = None
        self._values: Array | None = None
        self.first = 0
        self.length = 0

    @property
    def endless(self) -> bool:
        """Whether nothing is ever dropped, so that it can be cut back to any position."""
        return not self._window

    def append(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Add T tokens, (T, G, D) each; returns keys and values of all tokens that are kept, (G, S, D) each."""
        self._drop()
        start = self.length - self.first
        end = start + keys.shape[0]
        self._keys = self._put(self._keys, keys, start, end)
        self._values = self._put(self._values, values, start, end)
        self.length += keys.shape[0]
        return self._keys[:, :end], self._values[:, :end]

    def reserve(self, tokens: int, each: tuple[int, int]) -> tuple[Array, Array, int]:
        """The buffers of keys and values, with room for so many tokens more of shape (G, D), and where to put them.

        For a backend that writes into buffers itself. They are in when `length` says so, which it then adds to.
        """
        self._drop()
        start = self.length - self.first
        self._keys = self._with_room(self._keys, each, start, start + tokens)
        self._values = self._with_room(self._values, each, start, start + tokens)
        return self._keys, self._values, start

    def _put(self, buffer: Array | None, new: Array, start: int, end: int) -> Array:
        _, heads, size = new.shape
        return self._ops.write(self._with_room(buffer, (heads, size), start, end), new, start)

    def _with_room(self, buffer: Array | None, each: tuple[int, int], start: int, end: int) -> Array:
        room = buffer.shape[1] if buffer is not None else 0
        if buffer is not None and end <= room:
            return buffer
        heads, size = each
        grown = self._ops.zeros((heads, _grown(room, end), size), grows=True)
        if buffer is not None and start:
            grown = self._ops.write(grown, buffer[:, :start].transpose(1, 0, 2), 0)
        return grown

    def _drop(self) -> None:
        """Move what the window still needs to the front, once that is the smaller part."""
        held, needed = self.length - self.first, self._window - 1
        if not self._window or held <= 2 * self._window + STEP or self._keys is None or self._values is None:
            return
        for name in ("_keys", "_values"):
            buffer = getattr(self, name)
            kept = self._ops.copy(buffer[:, held - needed : held].transpose(1, 0, 2))
            setattr(self, name, self._ops.write(buffer, kept, 0))
        self.first = self.length - needed

    def bytes_after(self, tokens: int) -> int:
        """Bytes of both buffers once `tokens` more are in; 0 before the first, when their sizes are not known."""
        if self._keys is None or self._values is None:
            return 0
        held, room = self.length - self.first, self._keys.shape[1]
        if self._window and held > 2 * self._window + STEP:
            held = self._window - 1
        room = _grown(room, held + tokens) if held + tokens > room else room
        return room * (int(self._keys.nbytes) + int(self._values.nbytes)) // int(self._keys.shape[1])

    def can_trim(self, position: int) -> bool:
        """Whether all that queries from `position` on can see is still there."""
        return position == 0 or self.first == 0 or position - self.first >= self._window - 1

    def trim(self, position: int) -> None:
        """Forget the tokens from `position` on; their room is kept for others."""
        self.length = min(self.length, position)
        if position == 0:
            self.first = 0

    def copy(self) -> KVCache:
        """An independent cache with the same content."""
        other = KVCache(self._ops, self._window)
        other.first, other.length = self.first, self.length
        if self._keys is not None and self._values is not None:
            other._keys, other._values = self._ops.copy(self._keys), self._ops.copy(self._values)
        return other

    def head(self, position: int) -> KVCache:
        """An independent cache of the first `position` tokens, in buffers no larger than they need.

        Only where they are all there: of one that is `endless`.
        """
        other = KVCache(self._ops, self._window)
        if position and self._keys is not None and self._values is not None:
            other.length = position
            other._keys = other._put(None, self._keys[:, :position].transpose(1, 0, 2), 0, position)
            other._values = other._put(None, self._values[:, :position].transpose(1, 0, 2), 0, position)
        return other

    def arrays(self) -> Iterator[Array]:
        """Both buffers."""
        yield from (array for array in (self._keys, self._values) if array is not None)

    def save(self) -> Saved:
        """What is kept, without spare room."""
        saved = {"first": np.array(self.first), "length": np.array(self.length)}
        if self._keys is not None and self._values is not None:
            held = self.length - self.first
            saved["keys"] = self._ops.to_numpy(self._keys[:, :held])
            saved["values"] = self._ops.to_numpy(self._values[:, :held])
        return saved

    def restore(self, saved: Saved) -> None:
        """Take over what `save` gave."""
        self.first, self.length = int(saved["first"]), int(saved["length"])
        self._keys = self._values = None
        if "keys" in saved and self.length > self.first:
            held = self.length - self.first
            keys, values = (self._ops.asarray(saved[name]).transpose(1, 0, 2) for name in ("keys", "values"))
            self._keys, self._values = self._put(None, keys, 0, held), self._put(None, values, 0, held)


class StateCache:
    """The states of a recurrent layer, replaced as a whole by each call. `states` is empty before the first."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.states: tuple[Array, ...] = ()

    def bytes_after(self, tokens: int) -> int:
        """Bytes of the states, however many tokens come; 0 before the first."""
        return sum(int(state.nbytes) for state in self.states)

    def can_trim(self, position: int) -> bool:
        """Only to the beginning."""
        return position == 0

    def trim(self, position: int) -> None:
        """Forget everything; `Cache.trim` asks for nothing else."""
        self.states = ()

    def copy(self) -> StateCache:
        """An independent cache with the same content."""
        other = StateCache(self._ops)
        other.states = tuple(self._ops.copy(state) for state in self.states)
        return other

    def arrays(self) -> Iterator[Array]:
        """The states."""
        yield from self.states

    def save(self) -> Saved:
        """The states, by their place."""
        return {str(index): self._ops.to_numpy(state) for index, state in enumerate(self.states)}

    def restore(self, saved: Saved) -> None:
        """Take over what `save` gave."""
        self.states = tuple(self._ops.asarray(saved[str(index)]) for index in range(len(saved)))


class Taken(NamedTuple):
    """An image in a sequence: the tokens from `start` to `end`, which stand at the rope positions from `rope` on.

    What follows it stands at `rope` + `advance`. It may have gone in up to some token before `end` only.
    """

    start: int
    end: int
    rope: int
    advance: int


class Checkpoint(NamedTuple):
    """A state of a `Cache` to come back to: copies of the parts that cannot be trimmed, None for those that can."""

    position: int
    parts: tuple[Any, ...]
    images: tuple[Taken, ...]


class Cache:
    """The memory of one sequence.

    parts     one for each layer, in order, of the kinds that the graph chose
    position  number of tokens that went in
    images    those among the tokens, in order; `hf2q.backends.media` adds them
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts: tuple[Any, ...] = tuple(parts)
        self.position = 0
        self.images: tuple[Taken, ...] = ()

    @property
    def rope_offset(self) -> int:
        """What to add to the position of a token of text for its rope position: an image may count for less there."""
        last = self.images[-1] if self.images else Taken(0, 0, 0, 0)
        return last.rope + last.advance - last.end

    @property
    def unfinished(self) -> Taken | None:
        """The image whose tokens have gone in only in part, or None."""
        return self.images[-1] if self.images and self.images[-1].end > self.position else None

    def can_trim(self, position: int) -> bool:
        """Whether the sequence can be cut back to its first `position` tokens; never to the middle of an image."""
        return position == self.position or (
            0 <= position < self.position
            and not any(image.start < position < image.end for image in self.images)
            and all(part.can_trim(position) for part in self.parts)
        )

    def trim(self, position: int) -> None:
        """Go back to the state after the first `position` tokens.

        Errors: UsageError when a layer makes that impossible; nothing has changed then.
        """
        if not self.can_trim(position):
            raise UsageError(
                f"a cache of {self.position} tokens cannot be cut back to {position}",
                hint="keep a copy() at positions to return to: recurrent states and windows hold no history, and an "
                "image is kept as a whole",
            )
        if position == self.position:
            return
        for part in self.parts:
            part.trim(position)
        self.position = position
        self.images = tuple(image for image in self.images if image.end <= position)

    def copy(self) -> Cache:
        """An independent cache with the same content."""
        other = Cache([part.copy() for part in self.parts])
        other.position, other.images = self.position, self.images
        return other

    def checkpoint(self) -> Checkpoint:
        """What `roll_back` needs to come back to now. Keys and values without a window are not copied: they trim."""
        kept = [None if isinstance(part, KVCache) and part.endless else part.copy() for part in self.parts]
        return Checkpoint(self.position, tuple(kept), self.images)

    def roll_back(self, checkpoint: Checkpoint) -> None:
        """Become what the cache was at `checkpoint`, which is used up. It must not have been trimmed further back."""
        parts = []
        for part, kept in zip(self.parts, checkpoint.parts, strict=True):
            if kept is None:
                part.trim(checkpoint.position)
            parts.append(part if kept is None else kept)
        self.parts = tuple(parts)
        self.position, self.images = checkpoint.position, checkpoint.images

    def arrays(self) -> Iterator[Array]:
        """The arrays of all parts."""
        for part in self.parts:
            yield from part.arrays()

    def save(self) -> dict[str, NDArray[Any]]:
        """All content as named arrays; exact."""
        saved: dict[str, NDArray[Any]] = {"position": np.array(self.position)}
        if self.images:
            saved["images"] = np.array(self.images, np.int64)
        for index, part in enumerate(self.parts):
            saved |= {f"{index}.{name}": array for name, array in part.save().items()}
        return saved

    def restore(self, saved: Saved) -> None:
        """Become what `save` of a cache of the same graph gave."""
        for index, part in enumerate(self.parts):
            prefix = f"{index}."
            part.restore({name[len(prefix) :]: a for name, a in saved.items() if name.startswith(prefix)})
        self.position = int(saved["position"])
        self.images = tuple(Taken(*row) for row in saved["images"].tolist()) if "images" in saved else ()


def positions(caches: Sequence[Cache], tokens: int) -> NDArray[np.int64]:
    """The positions (B, T) of the next `tokens` tokens of each sequence."""
    starts = np.array([cache.position for cache in caches], np.int64)
    return starts[:, None] + np.arange(tokens)


def layers(caches: Sequence[Cache]) -> Iterator[list[Any]]:
    """For each layer, the parts of all sequences."""
    for parts in zip(*(cache.parts for cache in caches), strict=True):
        yield list(parts)


def append(parts: Sequence[KVCache], keys: Array, values: Array) -> tuple[list[Array], list[Array]]:
    """Add keys and values (B, T, G, D) to the caches of the rows; for each row those of all its tokens (G, S, D)."""
    pairs = [part.append(_row(keys, row), _row(values, row)) for row, part in enumerate(parts)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _row(x: Array, row: int) -> Array:
    """x[row] as a slice, which costs nothing: MLX gathers what a number indexes."""
    return x[row : row + 1].reshape(*x.shape[1:])


def advance(caches: Sequence[Cache], tokens: int) -> None:
    """Called by a graph once all layers have taken in `tokens` more of each sequence."""
    for cache in caches:
        cache.position += tokens
