"""`Prepared`: a question to a chat, ready for the engine. Made by `hf2q.serve.chat.Chat.prepare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hf2q.serve.chat.deltas import AnswerParser
    from hf2q.serve.constraint import Constraint


class Prepared(Protocol):
    """What the engine and the reader of its answer need. Parsers and constraints are made anew for each choice."""

    @property
    def text(self) -> str:
        """The prompt."""
        ...

    @property
    def skip_special(self) -> bool:
        """Whether the texts of control tokens are left out of the answer: not where they are markers to be seen."""
        ...

    def parser(self) -> AnswerParser:
        """A parser for one answer."""
        ...

    def constraint(self) -> Constraint | None:
        """What holds one answer to its form, or None where it is free."""
        ...
