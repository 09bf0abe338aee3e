"""`Question`: what `Chat.prepare` gives, a question ready for the engine and for the reader of its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf2q.serve.chat.calls import CallRules, CallScanner
from hf2q.serve.chat.parsing import Parser
from hf2q.serve.chat.reasoning import ReasoningSplitter
from hf2q.serve.chat.syntax import ToolSyntax

if TYPE_CHECKING:
    from hf2q.serve.chat.constraints import Form
    from hf2q.serve.constraint import Constraint


class Question:
    """A `hf2q.serve.chat.prepared.Prepared`.

    text          the prompt
    skip_special  whether the texts of control tokens are left out of the answer
    markers       around reasoning; `inside` says whether the prompt has opened it
    syntax, rules how calls are read, where there may be any
    form          what holds answers to it, or None
    """

    def __init__(
        self,
        text: str,
        *,
        skip_special: bool,
        markers: tuple[str, str] | None,
        inside: bool,
        syntax: ToolSyntax | None = None,
        rules: CallRules | None = None,
        form: Form | None = None,
    ) -> None:
        self.text = text
        self.skip_special = skip_special
        self._markers, self._inside = markers, inside
        self._syntax, self._rules, self._form = syntax, rules, form

    def parser(self) -> Parser:
        """A parser for one answer."""
        scanner = None if self._syntax is None or self._rules is None else CallScanner(self._syntax, self._rules)
        return Parser(ReasoningSplitter(self._markers, inside=self._inside), scanner)

    def constraint(self) -> Constraint | None:
        """What holds one answer to its form."""
        return None if self._form is None else self._form.constraint()
