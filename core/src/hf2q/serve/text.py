"""Token ids to text for one answer: decoded as it comes, cut before the first stop string.

Text that could still turn out to be the beginning of a stop string is held back, so nothing of one ever gets out. The
result does not depend on how tokens cut the text: streaming and collecting give the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """What is used of `hf2q.formats.tokenizer.StreamDecoder`."""

    def push(self, token: int) -> str: ...
    def flush(self) -> str: ...


class TextStream:
    """The text of one answer. `stopped` becomes True when a stop string was found; there is no more text then."""

    def __init__(self, decoder: Decoder, stop: Sequence[str] = ()) -> None:
        self._decoder = decoder
        self._matcher = StopMatcher(stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._matcher.stopped

    def push(self, token: int) -> str:
        """Text that became certain with this token."""
        return self._matcher.push(self._decoder.push(token))

    def flush(self) -> str:
        """The rest, when no more tokens come."""
        return self._matcher.push(self._decoder.flush()) + self._matcher.flush()


class StopMatcher:
    """Finds the stop string that is complete first (of those that end together, the longest) and cuts before it."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Add text; returns what is certainly not part of a stop string."""
        if self.stopped or not text:
            return ""
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back: no stop string came of it."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
