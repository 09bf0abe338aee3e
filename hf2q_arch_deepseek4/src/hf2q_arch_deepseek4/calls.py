"""Calls of tools as DeepSeek-V4 writes them, in DSML; one block holds one or more::

    <｜DSML｜tool_calls>
    <｜DSML｜invoke name="NAME">
    <｜DSML｜parameter name="KEY" string="true|false">VALUE</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜tool_calls>

With ``string="true"`` a value is text as it stands, else JSON. Source: llama.cpp,
models/templates/deepseek-ai-DeepSeek-V4-Flash-0731.jinja.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hf2q.serve.chat.reading import NAME, Reading, Reads
from hf2q.serve.chat.schemas import Schema
from hf2q.serve.chat.syntax import ToolSchema

OPEN, CLOSE = "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"
INVOKE, INVOKE_END = '<｜DSML｜invoke name="', "</｜DSML｜invoke>"
PARAMETER, VALUE_END = '<｜DSML｜parameter name="', "</｜DSML｜parameter>"


class DsmlCalls:
    """A `hf2q.serve.chat.syntax.ToolSyntax`."""

    markers = (OPEN, CLOSE)
    marks = (OPEN, CLOSE, INVOKE_END, VALUE_END, "｜DSML｜")
    foreign = ("<think>", "</think>", "<｜User｜>", "<｜Assistant｜>", "<tool_result>")

    def reader(self, tools: Sequence[ToolSchema]) -> DsmlReader:
        """Reads one block."""
        return DsmlReader(tools)

    def grammar(self, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        """See `hf2q_arch_deepseek4.call_grammar`."""
        from hf2q_arch_deepseek4.call_grammar import grammar

        return grammar(tools, parallel=parallel)


class DsmlReader(Reading):
    """Reads one block of calls."""

    def body(self) -> Reads[None]:
        """The calls and the closing marker. Errors: ValueError."""
        yield from self.space()
        yield from self.expect(INVOKE)
        more = True
        while more:
            yield from self._call()
            yield from self.space()
            more = (yield from self.either(INVOKE, CLOSE)) == INVOKE

    def _call(self) -> Reads[None]:
        """What follows the opening of an invocation, with its end."""
        schema = Schema(self.begin((yield from self.until('">', most=NAME))).parameters)
        self.say("{")
        more = ""
        yield from self.space()
        while (yield from self.either(PARAMETER, INVOKE_END)) == PARAMETER:
            key = yield from self.until('" string="', most=NAME)
            self.say(f"{more}{json.dumps(key, ensure_ascii=False)}: ")
            more = ", "
            if (yield from self.either('true">', 'false">')) == 'true">':
                self.say('"')
                yield from self.until(VALUE_END, sink=self.say_text)
                self.say('"')
            else:
                parts: list[str] = []
                yield from self.json(parts.append)  # a text in it may hold the mark of a value's end
                yield from self.space()
                yield from self.expect(VALUE_END)
                self.say(_json(schema.member(key), "".join(parts), required=key in schema.required))
            yield from self.space()
        self.say("}")
        self.end()


def _json(schema: Schema, text: str, *, required: bool) -> str:
    """The JSON text of a value that is said to be no text."""
    if schema.written == "json":
        return text
    if text == "null":
        if required and schema.written == "text":
            raise ValueError("found null, expected a text")
        return text
    # the schema knows better than the model that this is a text
    return text if text.startswith('"') else json.dumps(text, ensure_ascii=False)
