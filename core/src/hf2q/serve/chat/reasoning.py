"""Where reasoning ends and the answer begins, decided on text as it arrives.

A reasoning model writes its reasoning between two markers at the start of its turn, or continues reasoning that the
prompt has already opened. The markers and the white space around them belong to neither part.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Delta(NamedTuple):
    """A piece of text, split. Reasoning always comes before content."""

    reasoning: str = ""
    content: str = ""


class _State(enum.Enum):
    START = "nothing but white space so far; reasoning may open"
    REASONING = "inside reasoning"
    AFTER = "reasoning has closed; white space is dropped"
    CONTENT = "the answer"


class ReasoningSplitter:
    """Splits one answer, fed in pieces cut anywhere.

    Parameters: `markers` are the opening and closing text, None when the model has no reasoning; `inside` whether the
    prompt has opened reasoning already.

    What may be part of a marker is held back until it is clear, so the pieces given out, joined, do not depend on how
    the text was cut. A marker anywhere but at the start of the answer is ordinary text: an answer may be about it.
    """

    def __init__(self, markers: tuple[str, str] | None, *, inside: bool) -> None:
        self._open, self._close = markers or ("", "")
        self._held = ""
        self._begun = False
        self._state = _State.CONTENT if markers is None else _State.REASONING if inside else _State.START

    @property
    def reasoning(self) -> bool:
        """Whether the text is inside reasoning now."""
        return self._state is _State.REASONING

    def feed(self, text: str) -> Delta:
        """Take a piece; return what is clear by now."""
        self._held += text
        if self._state is _State.START and not self._opened():
            return Delta()
        reasoning = self._reasoning() if self._state is _State.REASONING else ""
        if self._state is _State.AFTER:
            self._held = self._held.lstrip()
            if self._held:
                self._state = _State.CONTENT
        content = self._take(len(self._held)) if self._state is _State.CONTENT else ""
        return Delta(reasoning, content)

    def finish(self) -> Delta:
        """The end of the answer: what was held back is ordinary text."""
        rest = self._take(len(self._held))
        if self._state is _State.REASONING:
            return Delta(reasoning=rest)
        return Delta(content="" if self._state is _State.AFTER else rest)

    def _opened(self) -> bool:
        """Decide whether reasoning opens; False while that is not clear."""
        text = self._held.lstrip()
        if text.startswith(self._open):
            self._held = text[len(self._open) :]
            self._state = _State.REASONING
            return True
        if self._open.startswith(text):
            return False
        self._state = _State.CONTENT
        return True

    def _reasoning(self) -> str:
        if not self._begun:
            self._held = self._held.lstrip()
            self._begun = bool(self._held)
        end = self._held.find(self._close)
        if end >= 0:
            text = self._take(end).rstrip()
            self._take(len(self._close))
            self._state = _State.AFTER
            return text
        clear = len(self._held) - overlap(self._held, self._close)
        return self._take(len(self._held[:clear].rstrip()))

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def overlap(text: str, marker: str) -> int:
    """The length of the longest end of `text` with which `marker` begins."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0
