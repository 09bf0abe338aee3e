"""`Parser`: the text of one answer taken apart into reasoning, content and calls."""

from __future__ import annotations

from hf2q.serve.chat.calls import CallScanner
from hf2q.serve.chat.deltas import AnswerDelta
from hf2q.serve.chat.reasoning import Delta, ReasoningSplitter


class Parser:
    """A `hf2q.serve.chat.deltas.AnswerParser`: `splitter` finds reasoning, `scanner` calls in what follows it.

    Without a scanner there are no calls: marks of calls are content then, as an answer may be about them. What stands
    in reasoning is reasoning.
    """

    def __init__(self, splitter: ReasoningSplitter, scanner: CallScanner | None = None) -> None:
        self._splitter = splitter
        self._scanner = scanner

    @property
    def reasoning(self) -> bool:
        """Whether the text is inside reasoning now."""
        return self._splitter.reasoning

    @property
    def called(self) -> bool:
        """Whether at least one call has begun."""
        return self._scanner is not None and self._scanner.called

    def feed(self, text: str) -> AnswerDelta:
        """Take a piece. Errors: AnswerError for a call that cannot be read, of which a part was given out."""
        return self._scanned(self._splitter.feed(text))

    def finish(self, *, cut: bool = False) -> AnswerDelta:
        """The end of the answer. Errors: AnswerError where a call is required and none is whole."""
        last = self._scanned(self._splitter.finish())
        if self._scanner is None:
            return last
        rest = self._scanner.finish(cut=cut)
        return AnswerDelta(last.reasoning, last.content + rest.content, last.calls + rest.calls)

    def _scanned(self, delta: Delta) -> AnswerDelta:
        if self._scanner is None or not delta.content:
            return AnswerDelta(delta.reasoning, delta.content)
        return AnswerDelta(delta.reasoning, *self._scanner.feed(delta.content))
