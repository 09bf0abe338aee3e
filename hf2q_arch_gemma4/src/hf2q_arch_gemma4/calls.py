"""Calls of tools as Gemma 4 writes them::

    <|tool_call>call:NAME{key:<|"|>text<|"|>,number:42,list:[true,null],map:{key:1}}<tool_call|>

Texts stand between marks of their own, keys bare, everything else as in JSON. Keys and texts in JSON's quotes are read
as well, and ``None``, as the template prints null.

Source: llama.cpp, models/templates/google-gemma-4-31B-it.jinja, `format_argument`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hf2q.serve.chat.reading import NAME, Reading, Reads
from hf2q.serve.chat.schemas import Schema, is_json
from hf2q.serve.chat.syntax import ToolSchema

OPEN, CLOSE = "<|tool_call>", "<tool_call|>"
QUOTE = '<|"|>'
_OPENING = {"}": "{", "]": "["}
_NO_KEY = frozenset("{}[],<>\"'\n")


class GemmaCalls:
    """A `hf2q.serve.chat.syntax.ToolSyntax`."""

    markers = (OPEN, CLOSE)
    marks = (OPEN, CLOSE, QUOTE)
    foreign = ("<|tool_response>", "<tool_response|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>")

    def reader(self, tools: Sequence[ToolSchema]) -> GemmaReader:
        """Reads one call."""
        return GemmaReader(tools)

    def grammar(self, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        """See `hf2q_arch_gemma4.call_grammar`."""
        from hf2q_arch_gemma4.call_grammar import grammar

        return grammar(tools, parallel=parallel)


class GemmaReader(Reading):
    """Reads one call."""

    def body(self) -> Reads[None]:
        """The call and its closing marker. Errors: ValueError."""
        yield from self.space()
        yield from self.expect("call:")
        tool = self.begin((yield from self.until("{", most=NAME)))
        yield from self._inner(Schema(tool.parameters), "}")
        self.end()
        yield from self.space()
        yield from self.expect(CLOSE)

    def _inner(self, schema: Schema, close: str) -> Reads[None]:
        """What follows an opening brace or bracket, up to the one that closes it. It may nest as deep as it likes."""
        self.say(_OPENING[close])
        open_ = [(schema, close)]
        first = True  # in the innermost object or list
        while open_:
            schema, close = open_[-1]
            found = yield from self.space()
            more = first and found != close
            if not more:
                more = (yield from self.either(",", close)) == ","
                self.say(", " if more else close)
            first = False
            if not more:
                open_.pop()
                continue
            value = schema.items()
            if close == "}":
                key = yield from self._key()
                self.say(f"{json.dumps(key, ensure_ascii=False)}: ")
                value = schema.member(key)
            inner = yield from self._value(value)
            if inner:
                self.say(_OPENING[inner])
                open_.append((value, inner))
                first = True

    def _key(self) -> Reads[str]:
        """A key and the colon behind it."""
        first = yield from self.space()
        if first == "<":
            yield from self.expect(QUOTE)
            key = yield from self.until(QUOTE, most=NAME)
        elif first == '"':
            parts: list[str] = []
            yield from self.json_text(parts.append)
            key = str(json.loads("".join(parts)))
        else:
            key = (yield from self.until(":", most=NAME)).strip()
            if not key or _NO_KEY & set(key):
                raise ValueError(f"found {key!r:.60}, expected a key")
            return key
        yield from self.space()
        yield from self.expect(":")
        return key

    def _value(self, schema: Schema) -> Reads[str]:
        """A value, but only the opening of an object or a list; what closes that, "" for anything else."""
        first = yield from self.space()
        if first == "<":
            yield from self.expect(QUOTE)
            self.say('"')
            yield from self.until(QUOTE, sink=self.say_text)
            self.say('"')
        elif first == '"':
            yield from self.json_text(self.say)
        elif first in "{[":
            return "}" if (yield from self.next()) == "{" else "]"
        else:
            self.say(_bare(schema, (yield from self.bare(",}]<")).strip()))
        return ""


def _bare(schema: Schema, text: str) -> str:
    """The JSON text of a value without quotes."""
    if not text:
        raise ValueError("a value is missing")
    if text in ("null", "None"):
        return "null"
    if schema.written == "json" and text in ("True", "False"):
        return text.lower()
    # a text is always quoted: a number where the schema says text is a text whose quotes the model forgot
    return json.dumps(text, ensure_ascii=False) if schema.written != "json" or not is_json(text) else text
