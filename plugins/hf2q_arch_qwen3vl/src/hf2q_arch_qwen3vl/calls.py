"""Calls of tools as Qwen3 and Qwen3-VL write them, in the form of Hermes: a JSON object between two markers::

    <tool_call>
    {"name": "NAME", "arguments": {"KEY": VALUE}}
    </tool_call>

Source: the chat template of Qwen3-VL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hf2q.serve.chat.reading import Reading, Reads
from hf2q.serve.chat.syntax import ToolSchema

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesCalls:
    """A `hf2q.serve.chat.syntax.ToolSyntax`."""

    markers = (OPEN, CLOSE)
    marks = (OPEN, CLOSE)
    foreign = ("<think>", "</think>")

    def reader(self, tools: Sequence[ToolSchema]) -> HermesReader:
        """Reads one call."""
        return HermesReader(tools)

    def grammar(self, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        """See `hf2q_arch_qwen3vl.call_grammar`."""
        from hf2q_arch_qwen3vl.call_grammar import grammar

        return grammar(tools, parallel=parallel)


class HermesReader(Reading):
    """Reads one call."""

    def body(self) -> Reads[None]:
        """The object and the closing marker. Errors: ValueError."""
        named = told = False
        waiting: list[str] = []  # arguments that come before the name
        yield from self.space()
        yield from self.expect("{")
        more = True
        while more:
            yield from self.space()
            key = yield from self._text()
            yield from self.space()
            yield from self.expect(":")
            yield from self.space()
            if key == "name" and not named:
                self.begin((yield from self._text()))
                named = True
                self.say("".join(waiting))
            elif key == "arguments" and not told:
                yield from self.json_object(self.say if named else waiting.append)
                told = True
            else:
                raise ValueError(f"found the key {key!r:.60}, expected name and arguments, each once")
            yield from self.space()
            more = (yield from self.either(",", "}")) == ","
        if not named:
            raise ValueError("the call has no name")
        if not told:
            self.say("{}")
        self.end()
        yield from self.space()
        yield from self.expect(CLOSE)

    def _text(self) -> Reads[str]:
        parts: list[str] = []
        yield from self.json_text(parts.append)
        return str(json.loads("".join(parts)))
