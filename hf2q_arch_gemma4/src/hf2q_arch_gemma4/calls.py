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
_DEEPEST = 64
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
        yield from self._map(Schema(tool.parameters), 0)
        self.end()
        yield from self.space()
        yield from self.expect(CLOSE)

    def _map(self, schema: Schema, depth: int) -> Reads[None]:
        """What follows an opening brace, with the closing one."""
        self.say("{")
        if (yield from self.space()) == "}":
            yield from self.next()
            self.say("}")
            return
        keys: set[str] = set()
        more = True
        while more:
            key = yield from self._key()
            if key in keys:
                raise ValueError(f"the key {key:.60} comes twice")
            self.say(f"{', ' if keys else ''}{json.dumps(key, ensure_ascii=False)}: ")
            keys.add(key)
            yield from self._value(schema.member(key), depth + 1)
            yield from self.space()
            more = (yield from self.either(",", "}")) == ","
        self.say("}")

    def _list(self, schema: Schema, depth: int) -> Reads[None]:
        """What follows an opening bracket, with the closing one."""
        self.say("[")
        if (yield from self.space()) == "]":
            yield from self.next()
            self.say("]")
            return
        more, items = True, schema.items()
        while more:
            yield from self._value(items, depth + 1)
            yield from self.space()
            more = (yield from self.either(",", "]")) == ","
            self.say(", " if more else "]")

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

    def _value(self, schema: Schema, depth: int) -> Reads[None]:
        if depth > _DEEPEST:
            raise ValueError(f"values nest deeper than {_DEEPEST}")
        first = yield from self.space()
        if first == "<":
            yield from self.expect(QUOTE)
            self.say('"')
            yield from self.until(QUOTE, sink=self.say_text)
            self.say('"')
        elif first == '"':
            yield from self.json_text(self.say)
        elif first == "{":
            yield from self.next()
            yield from self._map(schema, depth)
        elif first == "[":
            yield from self.next()
            yield from self._list(schema, depth)
        else:
            self.say(_bare(schema, (yield from self.bare(",}]<")).strip()))


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
