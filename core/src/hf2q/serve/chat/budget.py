"""`ThinkingBudget`: reasoning that is closed by force once it has taken so many tokens."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from hf2q.serve.chat.reasoning import ReasoningSplitter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.formats.tokenizer import Tokenizer
    from hf2q.serve.constraint import Constraint

_WAIT = 8
"""Tokens that may still come to complete a character before the marker is forced in its middle."""


class ThinkingBudget:
    """A `Constraint` that counts the tokens of reasoning, and forces the closing marker after `budget` of them.

    Whether the text is reasoning is decided on the text, as its reader does. The tokens of the markers do not count.
    With a budget of 0 reasoning is closed as soon as it is open.

    inner    what the answer is held to besides, None for nothing. It must allow the closing marker wherever the text is
             reasoning
    newline  whether the closing marker stands in a line of its own
    """

    def __init__(
        self,
        inner: Constraint | None,
        *,
        budget: int,
        markers: tuple[str, str],
        inside: bool,
        tokenizer: Tokenizer,
        n_vocab: int,
        newline: bool = True,
    ) -> None:
        self._inner = inner
        self._left = budget
        self._close = markers[1]
        self._tokenizer = tokenizer
        self._splitter = ReasoningSplitter(markers, inside=inside)
        self._text = tokenizer.stream()
        self._forced: deque[int] = deque()
        self._done = False
        self._newline = newline
        self._tail = ""
        self._pending: list[bytes] = []
        self._mask: NDArray[np.uint32] = np.zeros((n_vocab + 31) // 32, np.uint32)
        self._look()

    def allowed(self) -> NDArray[np.uint32] | None:
        """One token while the marker is forced, else what the inner constraint allows."""
        if not self._forced:
            return None if self._inner is None else self._inner.allowed()
        self._mask[:] = 0
        self._mask[self._forced[0] // 32] = 1 << (self._forced[0] % 32)
        return self._mask

    def accept(self, token: int) -> None:
        """Take note of a token. Errors: Hf2qError for one that was not allowed."""
        if self._inner is not None:
            self._inner.accept(token)
        if self._done:
            return
        if self._forced:
            self._forced.popleft()
            self._done = not self._forced
            return
        before = self._splitter.reasoning
        self._follow(token)
        if before and self._splitter.reasoning:
            self._left -= 1
        self._look()

    @property
    def complete(self) -> bool:
        """Whether nothing can follow: as the inner constraint says."""
        return self._inner is not None and self._inner.complete

    def _follow(self, token: int) -> None:
        text = self._text.push(token)
        self._splitter.feed(text)
        data = self._tokenizer.token_bytes(token)
        self._pending = [*self._pending, data] if _cut(b"".join([*self._pending, data])) else []
        self._tail = (self._tail + text)[-1:]

    def _look(self) -> None:
        """Begin to force the marker once the budget is used up, and the text is not in the middle of a character."""
        if not self._splitter.reasoning or self._left > 0:
            return
        if self._pending and self._left > -_WAIT:
            return
        line = "\n" if self._newline and self._tail != "\n" else ""
        self._forced.extend(self._tokenizer.encode(line + self._close, add_bos=False))


def _cut(data: bytes) -> bool:
    """Whether the bytes end within a character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            need = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return back < need
    return False
