"""`PrefixStore`: the lines that nobody works on, by scope; the least recently used go when there is no room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf2q.serve.prefix import MOST_LINES, needs_checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hf2q.serve.prefix import Line


class PrefixStore:
    """Of one model, and used by one thread.

    budget     most bytes; 0 keeps nothing
    nbytes     bytes of all lines;  evictions  lines that had to go
    lookups, hits  counted by who looks
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.nbytes = 0
        self.evictions = self.lookups = self.hits = 0
        self._lines: dict[int, tuple[str, Line]] = {}  # by id(), the least recently used first

    def __len__(self) -> int:
        return len(self._lines)

    def of(self, scope: str) -> Iterator[Line]:
        """The lines of a scope, the most recently used first."""
        return (line for owner, line in reversed(list(self._lines.values())) if owner == scope)

    def touch(self, line: Line) -> None:
        """It was of use."""
        self._lines[id(line)] = self._lines.pop(id(line))

    def take(self, line: Line) -> None:
        """Take it out."""
        del self._lines[id(line)]
        self.nbytes -= line.nbytes

    def __contains__(self, line: Line) -> bool:
        return id(line) in self._lines

    def add(self, scope: str, line: Line) -> None:
        """Keep a line, unless it is larger than all that may be kept. Those that it makes needless go."""
        if line.nbytes > self.budget:
            return
        checkpoints = needs_checkpoints(line.cache)
        for other in list(self.of(scope)):
            same = other.common(line.ids, line.images) == len(other.ids)
            if same and (not checkpoints or len(other.ids) == len(line.ids)):
                self.take(other)
        self._lines[id(line)] = (scope, line)
        self.nbytes += line.nbytes
        self.shrink(self.budget)

    def shrink(self, most: int, keep: Line | None = None) -> None:
        """Drop lines, the least recently used first, until the rest takes at most so many bytes; never `keep`."""
        for _, line in list(self._lines.values()):
            if self.nbytes <= most and len(self._lines) <= MOST_LINES:
                return
            if line is not keep:
                self.take(line)
                self.evictions += 1
