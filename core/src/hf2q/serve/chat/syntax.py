"""`ToolSyntax`: how a family writes calls of tools. The class that a `ChatFormat` names; the public part of this room.

A model answers in text. With tools, that text holds calls between markers, in a syntax that the family was trained on:
XML-like parameters, JSON, or one of its own. A syntax says where calls are, reads them, and gives the grammar that
holds a model to them. `hf2q.serve.chat.reading` and `hf2q.serve.chat.schemas` help to write one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class ToolSchema(NamedTuple):
    """A function as a syntax needs to know it: its name, and the JSON schema of its arguments (an object's)."""

    name: str
    parameters: Mapping[str, Any]


class CallPiece(NamedTuple):
    """What a reader has understood. A call begins with its `name`; then come pieces of the JSON text of its arguments;
    `end` says that the call is whole. One piece may be all three.
    """

    name: str | None = None
    arguments: str = ""
    end: bool = False


class CallReader(Protocol):
    """Reads calls, from just behind an opening marker up to and with the closing one, character by character.

    So what it finds cannot depend on how the text was cut, and it stops at the very character that makes no sense.
    """

    def push(self, char: str) -> Sequence[CallPiece]:
        """Take the next character; return what is clear by now, in order. The pieces of a whole call, joined, are the
        text of a JSON object.

        Errors: ValueError saying what is wrong, for text that is no call, and for a name that is no tool's. Nothing is
        pushed after that, nor once it is `done`.
        """
        ...

    @property
    def done(self) -> bool:
        """Whether the closing marker has been read."""
        ...


class ToolSyntax(Protocol):
    """How calls are written. Made without arguments; holds no state."""

    @property
    def markers(self) -> tuple[str, str]:
        """The texts that open and close calls."""
        ...

    @property
    def marks(self) -> tuple[str, ...]:
        """All texts of the syntax that stand for nothing else, `markers` included: taken out of calls that turn out to
        be none before they are shown, and kept in the answer where they are control tokens.
        """
        ...

    @property
    def foreign(self) -> tuple[str, ...]:
        """Markers of other things (a turn, reasoning, a result): where no grammar holds the model, one of them inside
        a call means that it has gone astray, and the call is none.
        """
        ...

    def reader(self, tools: Sequence[ToolSchema]) -> CallReader:
        """A reader for what follows one opening marker. `tools` are those that may be called: a parameter's schema says
        whether ``42`` is a number or a text.
        """
        ...

    def grammar(self, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        """The rule ``call_rest`` in llguidance's Lark syntax, and those it needs: what follows the first opening
        marker, up to the end of the last call: one call of one of `tools`, or several where `parallel`, with all
        further markers. Names of other rules begin with ``call_``, of terminals with ``CALL_``.
        `hf2q.serve.grammar.calls` has the parts that syntaxes have in common.

        Errors: `hf2q.serve.grammar.problems.SchemaError` for parameters that the syntax cannot be held to.
        """
        ...
