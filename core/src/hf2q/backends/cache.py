"""What a sequence remembers between calls of a graph: keys and values, recurrent states.

`Cache` is made of one part for each layer. Parts of every kind are copied and counted alike; only attention parts can
be cut back to an earlier position, since a recurrent state holds no history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from hf2q.backends.ops import Array, Ops
from hf2q.errors import UsageError

STEP = 256
"""Room for keys and values is a multiple of this many tokens."""


class Part(Protocol):
    """The memory of one layer."""

    @property
    def trimmable(self) -> bool:
        """Whether earlier positions can be restored by `trim`."""
        ...

    def trim(self, position: int) -> None:
        """Forget everything from `position` on. Only where `trimmable`, or to 0."""
        ...

    def copy(self) -> Part:
        """An independent part with the same content."""
        ...

    def arrays(self) -> Iterator[Array]:
        """The arrays it holds."""
        ...


class KVCache:
    """Keys and values of an attention layer, (B, H, S, D) each, in buffers that grow by half when full."""

    trimmable = True

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._keys: Array | None = None
        self._values: Array | None = None
        self.length = 0

    def append(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Add T tokens, (B, H, T, D) each; returns keys and values of all tokens so far, (B, H, S, D) each."""
        start, end = self.length, self.length + keys.shape[2]
        self._keys = self._put(self._keys, keys, start, end)
        self._values = self._put(self._values, values, start, end)
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def _put(self, buffer: Array | None, new: Array, start: int, end: int) -> Array:
        room = buffer.shape[2] if buffer is not None else 0
        if end > room:
            room = -(-max(end, room + room // 2) // STEP) * STEP
            batch, heads, _, size = new.shape
            spare = self._ops.zeros((batch, heads, room - end, size))
            kept = [] if buffer is None else [buffer[:, :, :start]]
            return self._ops.concat([*kept, new, spare], axis=2)
        assert buffer is not None  # there was room
        return self._ops.write(buffer, new, start)

    def trim(self, position: int) -> None:
        """Forget the tokens from `position` on; their room is kept for others."""
        self.length = min(self.length, position)

    def copy(self) -> KVCache:
        """An independent cache with the same content."""
        other = KVCache(self._ops)
        other.length = self.length
        if self._keys is not None and self._values is not None:
            other._keys, other._values = self._ops.copy(self._keys), self._ops.copy(self._values)
        return other

    def arrays(self) -> Iterator[Array]:
        """Both buffers."""
        yield from (array for array in (self._keys, self._values) if array is not None)


class StateCache:
    """The states of a recurrent layer, replaced as a whole by each call. `states` is empty before the first."""

    trimmable = False

    def __init__(self) -> None:
        self.states: tuple[Array, ...] = ()

    def trim(self, position: int) -> None:
        """Forget everything; `Cache.trim` asks for nothing else."""
        self.states = ()

    def copy(self) -> StateCache:
        """An independent cache with the same content: states are replaced, never changed in place."""
        other = StateCache()
        other.states = self.states
        return other

    def arrays(self) -> Iterator[Array]:
        """The states."""
        yield from self.states


class Cache:
    """The memory of one sequence, or of a batch of sequences that advance together.

    parts     one for each layer, in order, of the kinds that the graph chose
    position  number of tokens that went in
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts: tuple[Any, ...] = tuple(parts)
        self.position = 0

    def advance(self, tokens: int) -> None:
        """Called by the graph once all layers have taken in `tokens` more."""
        self.position += tokens

    @property
    def trimmable(self) -> bool:
        """Whether the sequence can be cut back to any earlier position."""
        return all(part.trimmable for part in self.parts)

    def trim(self, position: int) -> None:
        """Go back to the state after the first `position` tokens.

        Errors: UsageError when a recurrent layer makes that impossible; nothing has changed then.
        """
        if position == self.position:
            return
        if not 0 <= position < self.position or not (self.trimmable or position == 0):
            raise UsageError(
                f"a cache of {self.position} tokens cannot be cut back to {position}",
                hint=None if self.trimmable else "it holds recurrent states: keep a copy() at positions to return to",
            )
        for part in self.parts:
            part.trim(position)
        self.position = position

    def copy(self) -> Cache:
        """An independent cache with the same content."""
        other = Cache([part.copy() for part in self.parts])
        other.position = self.position
        return other

    def arrays(self) -> list[Array]:
        """All arrays held, to be evaluated after a call of the graph."""
        return [array for part in self.parts for array in part.arrays()]
