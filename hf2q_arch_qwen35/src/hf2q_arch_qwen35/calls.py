"""Calls of tools as Qwen3.5 writes them::

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

Texts stand as they are, everything else as JSON; the line breaks beside a value belong to the markup. Source:
llama.cpp, models/templates/Qwen3.5-4B.jinja.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hf2q.serve.chat.reading import NAME, SPACE, Reading, Reads, Sink
from hf2q.serve.chat.schemas import Schema
from hf2q.serve.chat.syntax import ToolSchema

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PARAMETER, FUNCTION = "<parameter=", "</function>"
VALUE_END = "</parameter>"
_MOST_SPACE = 16
"""White space between the end of a value and what follows it: more than any model writes."""


class QwenCalls:
    """A `hf2q.serve.chat.syntax.ToolSyntax`."""

    markers = (OPEN, CLOSE)
    marks = (OPEN, CLOSE)
    foreign = ("<think>", "</think>")

    def reader(self, tools: Sequence[ToolSchema]) -> QwenReader:
        """Reads one call."""
        return QwenReader(tools)

    def grammar(self, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        """See `hf2q_arch_qwen35.call_grammar`."""
        from hf2q_arch_qwen35.call_grammar import grammar

        return grammar(tools, parallel=parallel)


class QwenReader(Reading):
    """Reads one call."""

    def body(self) -> Reads[None]:
        """The call and its closing marker. Errors: ValueError."""
        yield from self.space()
        yield from self.expect("<function=")
        tool = self.begin((yield from self.until(">", most=NAME)))
        schema = Schema(tool.parameters)
        self.say("{")
        more = ""
        yield from self.space()
        found = yield from self.either(PARAMETER, FUNCTION)
        while found == PARAMETER:
            key = yield from self.until(">", most=NAME)
            self.say(f"{more}{json.dumps(key, ensure_ascii=False)}: ")
            more = ", "
            found = yield from self._value(schema.member(key))
        self.say("}")
        self.end()
        yield from self.space()
        yield from self.expect(CLOSE)

    def _value(self, schema: Schema) -> Reads[str]:
        """A value and the markup behind it; what that opened or closed."""
        if schema.written == "text":
            self.say('"')
            found = yield from self._text(self.say_text)
            self.say('"')
            return found
        parts: list[str] = []
        found = yield from self._text(parts.append, quotes=_Quotes() if schema.written == "json" else None)
        self.say(schema.value("".join(parts)))
        return found

    def _text(self, sink: Sink, quotes: _Quotes | None = None) -> Reads[str]:
        """The text of a value, up to an end behind which comes a parameter or the function's end: a value may be
        about markup itself. What is inside `quotes` is no end.
        """
        char = yield from self.next()
        held = "" if char == "\n" else char
        while True:
            while held and ((quotes is not None and quotes.hide(held[0])) or not _may_end(held)):
                sink(held[0])
                if quotes is not None:
                    quotes.take(held[0])
                held = held[1:]
            for found in (PARAMETER, FUNCTION):
                if held.endswith(found):
                    return found
            held += yield from self.next()


class _Quotes:
    """Where a value is inside a text of JSON: what looks like an end of the value there belongs to the text.

    No text of JSON holds a line break, so where one stands in it the value is no JSON, and quotes mean nothing.
    """

    def __init__(self) -> None:
        self._begun = self._inside = self._escaped = False
        self._live = True

    def hide(self, char: str) -> bool:
        """Whether the next character, `char`, begins no end."""
        return self._inside and char != "\n"

    def take(self, char: str) -> None:
        """The next character of the value."""
        if not self._live:
            return
        if not self._begun:
            self._begun = char not in SPACE
            self._live = not self._begun or char in '{["'
        if self._inside and char == "\n":
            self._inside = self._live = False
        elif self._escaped:
            self._escaped = False
        elif self._inside and char == "\\":
            self._escaped = True
        elif char == '"' and self._live:
            self._inside = not self._inside


def _may_end(text: str) -> bool:
    """Whether an end of a value begins with `text`, or is it."""
    text = text.removeprefix("\n")
    if len(text) <= len(VALUE_END):
        return VALUE_END.startswith(text)
    behind = text.removeprefix(VALUE_END)
    rest = behind.lstrip(SPACE)
    if behind == text or len(behind) - len(rest) > _MOST_SPACE:
        return False
    return PARAMETER.startswith(rest) or FUNCTION.startswith(rest)
