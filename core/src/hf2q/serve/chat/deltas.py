"""The parts of an answer as they become clear: reasoning, content, calls. Streams send them; unary responses fold."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from hf2q.types import Record


class CallDelta(Record, frozen=True, kw_only=True):
    """A piece of a call. The first of each call has its `id` and `name` (and may have no arguments yet); all others
    have `arguments` alone: the next piece of the text of a JSON object.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class AnswerDelta(NamedTuple):
    """What a piece of text brought. Within one delta reasoning comes before content, and content before calls."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallDelta, ...] = ()


class AnswerParser(Protocol):
    """Takes the text of one answer apart, fed in pieces cut anywhere. What comes out, joined, does not depend on the
    cuts. Markers belong to no part.
    """

    @property
    def reasoning(self) -> bool:
        """Whether the text is inside reasoning now."""
        ...

    @property
    def called(self) -> bool:
        """Whether at least one call has begun: the reason why the answer ended is then ``tool_calls``."""
        ...

    def feed(self, text: str) -> AnswerDelta:
        """Take a piece; return what is clear by now.

        Errors: AnswerError for a call that cannot be read, of which a part was given out.
        """
        ...

    def finish(self, *, cut: bool = False) -> AnswerDelta:
        """The end of the answer; what was held back becomes clear. `cut` says that it was ended from outside (its
        length, a cancellation): a call that is not whole is no fault of the model then.

        Errors: AnswerError (code ``tool_call_parse_failure``) where the choice of tools required a call and none is
        whole, and where a part of one was given out that is not whole. With ``auto``, a call that is not whole becomes
        content.
        """
        ...
