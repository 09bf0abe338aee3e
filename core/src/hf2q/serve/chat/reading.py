"""`Reading`: what readers of calls are made of. A subclass reads characters as if it had the whole text before it::

    class Reader(Reading):
        def body(self):
            yield from self.expect("call:")
            self.begin((yield from self.until("{", most=NAME)))
            self.say("{}")
            self.end()
            yield from self.expect("}<end>")

Each ``yield`` waits for a character, so the same code reads what arrives in pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeAlias, TypeVar

from hf2q.serve.chat.syntax import CallPiece, ToolSchema

T = TypeVar("T")
Reads: TypeAlias = Generator[None, str, T]
"""A piece of reading that gives a T."""
Sink: TypeAlias = Callable[[str], object]
"""Where text goes as it is read."""

NAME = 256
"""Most characters of a name."""
SPACE = " \t\r\n"
_CLOSE = {"object": "}", "array": "]"}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escaped(text: str) -> str:
    """`text` as it stands between the quotes of a JSON text."""
    if len(text) != 1:
        return json.dumps(text, ensure_ascii=False)[1:-1]
    if text >= " ":
        return _ESCAPED.get(text, text)
    return _ESCAPED.get(text) or f"\\u{ord(text):04x}"


class Reading:
    """A `hf2q.serve.chat.syntax.CallReader`. Subclasses give `body`; the rest is for them to use."""

    def __init__(self, tools: Iterable[ToolSchema]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.done = False
        self._back = ""
        self._out: list[CallPiece] = []
        self._reads = self.body()
        next(self._reads)

    def body(self) -> Reads[None]:
        """Everything behind the opening marker, the closing one included. Errors: ValueError."""
        raise NotImplementedError

    def push(self, char: str) -> Sequence[CallPiece]:
        """Take the next character. Errors: ValueError for text that is no call."""
        try:
            self._reads.send(char)
        except StopIteration:
            self.done = True
        if not self._out:
            return ()
        out, self._out = self._out, []
        return out

    # ------------------------------------------------------------------------------------------------ what was found

    def begin(self, name: str) -> ToolSchema:
        """A call begins. Errors: ValueError when there is no such tool."""
        if name not in self.tools:
            raise ValueError(f"there is no tool {name!r:.80}")
        self._out.append(CallPiece(name))
        return self.tools[name]

    def say(self, arguments: str) -> None:
        """The next piece of the JSON text of its arguments."""
        self._out.append(CallPiece(None, arguments))

    def say_text(self, text: str) -> None:
        """The next piece of a text among its arguments, which becomes JSON here; the quotes are said by `say`."""
        self._out.append(CallPiece(None, escaped(text)))

    def end(self) -> None:
        """The call is whole."""
        self._out.append(CallPiece(None, "", True))

    # ------------------------------------------------------------------------------------------------------- reading

    def next(self) -> Reads[str]:
        """The next character."""
        if self._back:
            char, self._back = self._back, ""
            return char
        return (yield)

    def put_back(self, char: str) -> None:
        """It will be the next character again."""
        self._back = char

    def peek(self) -> Reads[str]:
        """The next character, which stays."""
        char = yield from self.next()
        self._back = char
        return char

    def expect(self, text: str) -> Reads[None]:
        """Read exactly `text`."""
        for wanted in text:
            char = yield from self.next()
            if char != wanted:
                raise ValueError(f"found {char!r}, expected {wanted!r} of {text!r}")

    def space(self) -> Reads[str]:
        """Skip white space; the character after it, which stays."""
        while True:
            char = yield from self.next()
            if char not in SPACE:
                self._back = char
                return char

    def either(self, *texts: str) -> Reads[str]:
        """Read one of `texts`, none of which begins another; which it was."""
        read = ""
        while read not in texts:
            read += yield from self.next()
            if not any(text.startswith(read) for text in texts):
                raise ValueError(f"found {read!r}, expected {' or '.join(map(repr, texts))}")
        return read

    def until(self, end: str, *, most: int = 0, sink: Sink | None = None) -> Reads[str]:
        """Read up to and with `end`; the text before it, which goes to `sink` instead where there is one.

        Errors: ValueError when it is longer than `most` (0: as long as it likes).
        """
        parts: list[str] = []
        held, last = "", end[-1]
        put: Sink = parts.append if sink is None else sink
        count = 0
        while True:
            char = yield from self.next()
            held += char
            count += 1
            if char == last and held.endswith(end):
                if len(held) > len(end):
                    put(held[: -len(end)])
                return "".join(parts)
            if most and count >= most + len(end):
                raise ValueError(f"found no {end!r} within {most} characters")
            if len(held) >= len(end):
                put(held[0])
                held = held[1:]

    # ---------------------------------------------------------------------------------------------------------- JSON

    def json(self, sink: Sink) -> Reads[str]:
        """Read one JSON value, white space before it included; its text goes to `sink`. Its type: ``object``,
        ``array``, ``string``, ``number``, ``boolean`` or ``null``.

        It may nest as deep as it likes, and an object's key may come twice: the last value counts, for all who read it
        later. Line breaks and their like, which models leave in texts, are escaped. Errors: ValueError for what is no
        JSON.
        """
        kind = yield from self._json_opening(sink)
        open_ = [kind] if kind in _CLOSE else []
        first = True  # in the innermost object or list
        while open_:
            close = _CLOSE[open_[-1]]
            found = yield from self.space()
            more = first and found != close
            if not more:
                more = (yield from self.either(",", close)) == ","
                sink(", " if more else close)
            first = False
            if not more:
                open_.pop()
                continue
            if open_[-1] == "object":
                yield from self._json_key(sink)
            inner = yield from self._json_opening(sink)
            if inner in _CLOSE:
                open_.append(inner)
                first = True
        return kind

    def json_object(self, sink: Sink) -> Reads[None]:
        """Read one JSON object, as `json` does. Errors: ValueError for what is none."""
        char = yield from self.space()
        if char != "{":
            raise ValueError(f"found {char!r}, expected a JSON object")
        yield from self.json(sink)

    def _json_opening(self, sink: Sink) -> Reads[str]:
        """Read one JSON value, but only the opening of an object or a list; its type."""
        char = yield from self.space()
        if char in "{[":
            yield from self.next()
            sink(char)
            return "object" if char == "{" else "array"
        if char == '"':
            yield from self.json_text(sink)
            return "string"
        if char in "tfn":
            word = {"t": "true", "f": "false", "n": "null"}[char]
            yield from self.expect(word)
            sink(word)
            return "null" if word == "null" else "boolean"
        text = yield from self.bare(",]}<" + SPACE)
        if not _NUMBER.fullmatch(text):
            raise ValueError(f"found {text!r:.60}, expected a JSON value")
        sink(text)
        return "number"

    def _json_key(self, sink: Sink) -> Reads[None]:
        """Read a key and its colon."""
        yield from self.space()
        yield from self.json_text(sink)
        yield from self.space()
        yield from self.expect(":")
        sink(": ")

    def json_text(self, sink: Sink) -> Reads[None]:
        """Read one JSON text, quotes included."""
        yield from self.expect('"')
        sink('"')
        while True:
            char = yield from self.next()
            if char == "\\":
                kind = yield from self.next()
                if kind == "u":
                    digits = ""
                    for _ in range(4):
                        digits += yield from self.next()
                    if not re.fullmatch("[0-9a-fA-F]{4}", digits):
                        raise ValueError(f"found \\u{digits}, expected four hexadecimal digits")
                    kind += digits
                elif kind not in '"\\/bfnrt':
                    raise ValueError(f"found \\{kind} in a JSON text")
                sink(f"\\{kind}")
            elif char == '"':
                sink('"')
                return
            else:
                sink(char if char >= " " else escaped(char))

    def bare(self, ends: str) -> Reads[str]:
        """Read up to one of the characters `ends`, which stays."""
        parts: list[str] = []
        while True:
            char = yield from self.next()
            if char in ends:
                self._back = char
                return "".join(parts)
            parts.append(char)
