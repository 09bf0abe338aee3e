"""`CallScanner`: calls are found in the text of an answer, and what is no call stays text.

The text of an answer is content up to a marker that opens calls. From there on a reader of the family's syntax takes
it character by character. A call that turns out to be none is content after all, without the family's marks.

Kept:    text before the first call, and whatever was meant as a call and is none
Dropped: white space around calls, and text behind the first whole one. Templates write a turn as text and then calls,
         so a dialogue could not hold it; llama.cpp and vLLM drop it in whole responses too
"""

from __future__ import annotations

import enum
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from hf2q.errors import AnswerError
from hf2q.serve.chat.deltas import CallDelta
from hf2q.serve.chat.reasoning import overlap
from hf2q.serve.chat.syntax import CallPiece, CallReader, ToolSchema, ToolSyntax
from hf2q.types import Record

log = logging.getLogger(__name__)


class CallRules(Record, frozen=True, kw_only=True):
    """How calls are read.

    tools     those that may be called
    marks     texts that are taken out of what was meant as a call and is none
    required  whether an answer without a call is an error
    parallel  whether calls behind the first count
    certain   whether a constraint holds the model to the syntax: pieces of a call are then given out as they come, and
              markers of other things may stand in its texts. Else a call is given out when it is whole
    new_id    gives the id of each call
    """

    tools: tuple[ToolSchema, ...]
    marks: tuple[str, ...] = ()
    required: bool = False
    parallel: bool = True
    certain: bool = False
    new_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(12)}"


class Found(NamedTuple):
    """What a piece of text brought: content, and calls."""

    content: str = ""
    calls: tuple[CallDelta, ...] = ()


class _State(enum.Enum):
    TEXT = "content; a call may open"
    CALL = "behind an opening marker"
    GARBLED = "what was meant as a call and is none, up to the closing marker"


class CallScanner:
    """Takes the content of one answer, fed in pieces cut anywhere."""

    def __init__(self, syntax: ToolSyntax, rules: CallRules) -> None:
        self._syntax, self._rules = syntax, rules
        self._open, self._close = syntax.markers
        self._foreign = () if rules.certain else syntax.foreign
        self._longest = max(map(len, self._foreign), default=0)
        self._state = _State.TEXT
        self._held = ""
        self._space = ""  # before an opening marker
        self._raw: list[str] = []  # read behind the marker, or behind the last whole call
        self._tail = ""  # its end, as long as the longest foreign marker
        self._seen = 0  # characters of `_held` in which, garbled, no marker counts or is whole
        self._reader: CallReader | None = None
        self._pending: list[CallPiece] = []  # of a call that is not whole yet
        self._told = False  # whether a part of it was given out
        self._begun = 0  # calls given out, or begun to be
        self._whole = 0
        self._content: list[str] = []
        self._calls: list[CallDelta] = []

    @property
    def called(self) -> bool:
        """Whether a call has been given out, at least in part."""
        return self._begun > 0

    def feed(self, text: str) -> Found:
        """Take a piece; return what is clear by now.

        Errors: AnswerError when a call of which a part was given out turns out to be none.
        """
        self._held += text
        while self._step():
            pass
        return self._found()

    def finish(self, *, cut: bool) -> Found:
        """The end; `cut` says that the answer was ended from outside, so that a part is no fault of the model.

        Errors: AnswerError where a call is required and none is whole, unless cut.
        """
        if self._state is _State.CALL:
            if self._told and not cut:
                raise self._failure("the answer ends inside a call", hint="a stop text ends calls as well")
            if not self._told:
                self._garble("the answer ends")
            self._pending = []
        if self._state is _State.GARBLED:
            self._give_up(len(self._held))
        elif self._state is _State.TEXT:
            self._say(self._held)
        self._held = ""
        if self._rules.required and not self._whole and not cut:
            raise self._failure("a call is required, and the answer holds none that is whole")
        return self._found()

    def _found(self) -> Found:
        found = Found("".join(self._content), tuple(_joined(self._calls)))
        self._content, self._calls = [], []
        return found

    # --------------------------------------------------------------------------------------------------------- states

    def _step(self) -> bool:
        """Go on as far as one state leads; whether there may be more to do."""
        if not self._held:
            return False
        if self._state is _State.TEXT:
            return self._text()
        return self._call() if self._state is _State.CALL else self._garbled()

    def _text(self) -> bool:
        at = self._held.find(self._open)
        if at < 0:
            clear = len(self._held) - overlap(self._held, self._open)
            clear = len(self._held[:clear].rstrip())
            self._say(self._held[:clear])
            self._held = self._held[clear:]
            return False
        before, self._held = self._held[:at], self._held[at + len(self._open) :]
        self._say(before.rstrip())
        self._space = before[len(before.rstrip()) :]
        self._enter()
        return True

    def _enter(self) -> None:
        self._state = _State.CALL
        self._reader = self._syntax.reader(self._rules.tools)
        self._raw, self._tail, self._pending, self._told = [], "", [], False

    def _call(self) -> bool:
        assert self._reader is not None
        for at, char in enumerate(self._held):
            self._raw.append(char)
            try:
                pieces = self._reader.push(char)
                self._check(char)
            except ValueError as error:
                self._held = self._held[at + 1 :]
                self._garble(str(error))
                return True
            for piece in pieces:
                self._take(piece)
            if self._reader.done:
                self._held = self._held[at + 1 :]
                self._state = _State.TEXT
                return True
        self._held = ""
        return False

    def _check(self, char: str) -> None:
        if self._foreign:
            self._tail = (self._tail + char)[-self._longest :]
            if self._tail.endswith(self._foreign):
                raise ValueError("a marker of something else stands in it")

    def _garbled(self) -> bool:
        found = []
        for mark in (self._open, self._close):
            at = self._held.find(mark, max(0, self._seen - len(mark) + 1))
            if at >= 0:
                found.append((at + len(mark), mark))
        if not found:
            self._seen = len(self._held)
            return False
        end, mark = min(found)
        self._give_up(end - len(mark), len(mark))
        if mark == self._open:
            self._space = ""
            self._enter()
        else:
            self._state = _State.TEXT
        return True

    # --------------------------------------------------------------------------------------------------------- pieces

    def _take(self, piece: CallPiece) -> None:
        """A piece of a call: kept until the call is whole, or given out at once where its form is certain."""
        self._pending.append(piece)
        if piece.end:
            self._raw, self._space = [], ""
        if not (self._rules.certain or piece.end):
            return
        wanted = self._rules.parallel or not self._whole
        if wanted:
            self._give(self._pending)
        if piece.end:
            self._whole += 1
        self._pending, self._told = [], not piece.end and wanted

    def _give(self, pieces: Sequence[CallPiece]) -> None:
        """Pieces of one call."""
        name = pieces[0].name
        if name is not None:
            self._begun += 1
        self._calls.append(
            CallDelta(
                index=self._begun - 1,
                id=None if name is None else self._rules.new_id(),
                name=name,
                arguments="".join(piece.arguments for piece in pieces),
            )
        )

    def _say(self, text: str) -> None:
        if not self._whole:
            self._content.append(text)

    def _garble(self, why: str) -> None:
        """What was read is no call: it is content, without marks, up to where calls would have closed."""
        if self._told:
            raise self._failure(why)
        log.info("a call in an answer cannot be read: %s", why)
        self._pending, self._reader = [], None
        self._state = _State.GARBLED
        self._seen = len(self._raw)
        self._held = "".join(self._raw) + self._held
        self._raw = []

    def _give_up(self, end: int, skip: int = 0) -> None:
        """`end` characters are content; the `skip` behind them are a marker."""
        text, self._held = scrubbed(self._held[:end], self._rules.marks), self._held[end + skip :]
        self._seen = 0
        if text.strip():
            self._content.append((self._space + text) if not self._whole else text.strip())
        self._space = ""

    def _failure(self, why: str, *, hint: str | None = None) -> AnswerError:
        message = f"the model's call of a tool cannot be read: {why}"
        return AnswerError(message, hint=hint, code="tool_call_parse_failure")


def _joined(deltas: Sequence[CallDelta]) -> Iterator[CallDelta]:
    """One delta for all that follow one another in a call; those that say nothing are left out."""
    for _, group in groupby(deltas, lambda delta: delta.index):
        first, *others = group
        arguments = "".join(delta.arguments for delta in (first, *others))
        if arguments or first.name is not None:
            yield CallDelta(index=first.index, id=first.id, name=first.name, arguments=arguments)


def scrubbed(text: str, marks: Sequence[str]) -> str:
    """`text` without any of `marks`, nor those that appear when others are taken out."""
    before = None
    while before != text:
        before = text
        for mark in marks:
            text = text.replace(mark, "")
    return text
