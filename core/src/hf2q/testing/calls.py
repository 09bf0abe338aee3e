"""`CallsContract`: a family's syntax of calls, from the text of an answer to names and JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from hf2q.errors import AnswerError
from hf2q.serve.chat.calls import CallRules, CallScanner
from hf2q.serve.chat.syntax import ToolSchema, ToolSyntax
from hf2q.testing.contract import Contract, not_checked
from hf2q.types import resolve

Call: TypeAlias = tuple[str, Mapping[str, Any]]
"""A name, and arguments."""

TOOLS = (
    ToolSchema(
        "write_file",
        {
            "type": "object",
            "properties": {"path": {"type": "string"}, "text": {"anyOf": [{"type": "string"}]}},
            "required": ["path"],
        },
    ),
    ToolSchema(
        "all-kinds_2",
        {
            "type": "object",
            "properties": {
                "whole": {"type": "integer"},
                "number": {"type": ["number"]},
                "flag": {"type": "boolean"},
                "maybe": {"type": ["string", "null"]},
                "one": {"enum": ["1", "two"]},
                "map": {"$ref": "#/$defs/Map"},
                "list": {"type": "array", "items": {"type": "string"}},
            },
            "$defs": {"Map": {"type": "object", "properties": {"inner": {"type": "string"}}}},
        },
    ),
    ToolSchema("nothing", {}),
)
TEXTS = (
    "",
    "x",
    "42",
    "-1.5e3",
    "true",
    "null",
    " leading and trailing  ",
    "\nline\n\nline\n",
    "\n",
    "\r\n\t",
    "quotes \" and ' and \\ and \\n",
    '{"json": [1, "two"]}',
    "<b>bold</b> </x> <!-- --> </function> <parameter=a> {[}], a:b",
    "naïve 東京 👩‍👩‍👧 \u2028",
    "<",
    "a < b | c > d <|",
)
"""What parameters hold that are texts."""
VALUES: tuple[Mapping[str, Any], ...] = (
    {},
    {"whole": 0},
    {"whole": -(2**70), "number": 1.5, "flag": True},
    {"flag": False, "maybe": None, "number": 1e-7},
    {"maybe": "text", "one": "1"},
    {"list": [], "map": {}},
    {"list": ["a", "", "1", 'q"'], "map": {"inner": "2", "more": {"deep": [None, [True], 1.25]}}},
    {"not_in_the_schema": 7, "nor_this": ["a"], "or_this": "plain text"},
)


class CallsContract(Contract):
    """Subclass it, set `plugin` and `name`, give `written`, and pytest runs the checks.

    name      of the `ChatFormat`
    examples  answers as models of the family wrote them, each with the calls in it
    """

    name: ClassVar[str] = ""
    examples: ClassVar[Sequence[tuple[str, Sequence[Call]]]] = ()

    def written(self, calls: Sequence[Call]) -> str:
        """The text by which the family's chat template shows `calls`, markers included."""
        not_checked("no text of calls to read; give the suite a method `written`")

    def syntax(self) -> ToolSyntax:
        """The class that the format names."""
        reference = self.plugins().chat_format(self.name).tools
        if not reference:
            not_checked("the format names no syntax of calls")
        made: ToolSyntax = resolve(reference)()
        return made

    def samples(self) -> Iterator[tuple[str, list[Call]]]:
        """Texts with the calls that they hold."""
        for text in TEXTS:
            call = ("write_file", {"path": text, "text": f"{text}{text}"})
            yield self.written([call]), [call]
        for values in VALUES:
            calls: list[Call] = [("all-kinds_2", values)]
            yield self.written(calls), calls
        several: list[Call] = [("nothing", {}), ("write_file", {"path": "a"}), ("all-kinds_2", VALUES[6])]
        yield self.written(several), several

    def test_its_markers_make_sense(self) -> None:
        """Openers and closers differ, are among the marks, and are none of what aborts a call."""
        syntax = self.syntax()
        assert len(syntax.markers) == 2
        assert len({*syntax.markers}) == 2
        assert set(syntax.markers) <= set(syntax.marks)
        assert all((*syntax.marks, *syntax.foreign))
        assert not set(syntax.marks) & set(syntax.foreign)

    def test_calls_come_back(self) -> None:
        """Names and arguments, with content before them and none behind; in pieces or at once."""
        syntax = self.syntax()
        for text, calls in self.samples():
            for certain in (False, True):
                content, found = read(syntax, f"Well. \n\n{text}\n", certain=certain)
                assert (content, found) == ("Well.", calls), text

    def test_pieces_come_in_order(self) -> None:
        """Of each call its name, then its arguments, then its end; and the reader is done at the closing marker."""
        syntax = self.syntax()
        opening, closing = syntax.markers
        for text, _ in self.samples():
            reader, arguments = syntax.reader(TOOLS), None
            for char in text[text.index(opening) + len(opening) : text.index(closing) + len(closing)]:
                assert not reader.done, text
                for piece in reader.push(char):
                    if piece.name is not None:
                        assert arguments is None, f"a call begins in another: {text}"
                        arguments = ""
                    if arguments is not None:
                        arguments += piece.arguments
                    assert arguments is not None or not (piece.arguments or piece.end), f"of no call: {text}"
                    if piece.end:
                        assert isinstance(json.loads(arguments or ""), dict), text
                        arguments = None
            assert reader.done, text
            assert arguments is None, text

    def test_calls_of_real_models_come_back(self) -> None:
        """Those of `examples`."""
        if not self.examples:
            not_checked("no answers of a model of the family; set `examples`")
        for text, calls in self.examples:
            names = {name: ToolSchema(name, {}) for name, _ in calls}
            _, found = read(self.syntax(), text, tools=(*names.values(), *TOOLS))
            assert found == list(calls), text

    def test_cuts_do_not_matter(self) -> None:
        """However a text is cut, what comes out, joined, is the same."""
        chance, syntax = random.Random(1), self.syntax()
        for text, _ in self.samples():
            text = f"a {text} b {text[: len(text) // 2]} c"
            for certain in (False, True):
                whole = outcome(syntax, [text], certain=certain)
                for step in (1, 2, 7):
                    pieces = [text[at : at + step] for at in range(0, len(text), step)]
                    assert outcome(syntax, pieces, certain=certain) == whole, text
                at = chance.randrange(len(text))
                assert outcome(syntax, [text[:at], text[at:]], certain=certain) == whole, text

    def test_a_call_that_breaks_off_is_content(self) -> None:
        """Wherever it ends: calls that were whole by then are calls, nothing raises, and no mark is shown."""
        syntax = self.syntax()
        for text, calls in self.samples():
            for end in range(0, len(text), 1 + len(text) // 40):
                content, found = read(syntax, text[:end])
                assert found == calls[: len(found)], text[:end]
                if end >= len(syntax.markers[0]):
                    assert not any(mark in content for mark in syntax.marks), text[:end]

    def test_damage_never_gives_broken_json(self) -> None:
        """Characters lost, doubled or changed: calls that are given out are JSON objects, of tools that there are."""
        chance, syntax = random.Random(2), self.syntax()
        names = {tool.name for tool in TOOLS}
        for text, _ in self.samples():
            for _ in range(10):
                at = chance.randrange(len(text))
                damaged = text[:at] + chance.choice(["", text[at] * 2, "\n", "<", '"', "}"]) + text[at + 1 :]
                for certain in (False, True):
                    try:
                        _, found = read(syntax, damaged, certain=certain)
                    except AnswerError as error:
                        if certain and error.code == "tool_call_parse_failure":
                            continue
                        raise
                    assert {name for name, _ in found} <= names, damaged

    def test_a_call_of_no_tool_is_content(self) -> None:
        """A name that the request does not offer."""
        for certain in (False, True):
            content, found = read(self.syntax(), self.written([("other", {"a": 1})]), certain=certain)
            assert not found
            assert "other" in content

    def test_a_key_that_comes_twice_is_read(self) -> None:
        """No grammar can forbid it of keys that a schema does not name; the last value counts, as in JSON."""
        tools = (ToolSchema("open", {"type": "object", "additionalProperties": True}),)
        for values in ({"first": 1, "other": 2}, {"map": {"first": 1, "other": 2}}):
            text = self.written([("open", values)]).replace("other", "first")
            wanted = json.loads(json.dumps(values).replace("other", "first"))
            for certain in (False, True):
                assert read(self.syntax(), text, certain=certain, tools=tools)[1] == [("open", wanted)], text

    def test_a_marker_of_something_else_aborts_a_call(self) -> None:
        """Where no grammar holds the model, in a text as well."""
        syntax = self.syntax()
        if not syntax.foreign:
            not_checked("the syntax names no markers of something else")
        for mark in syntax.foreign:
            call: Call = ("write_file", {"path": f"a{mark}b"})
            _, found = read(syntax, self.written([call]))
            assert not found, mark
            assert read(syntax, self.written([call]), certain=True)[1] == [call], mark


def read(
    syntax: ToolSyntax, text: str, *, certain: bool = False, tools: Sequence[ToolSchema] = TOOLS
) -> tuple[str, list[Call]]:
    """The content and the calls of an answer that comes in pieces of three characters."""
    return joined(syntax, [text[at : at + 3] for at in range(0, len(text), 3)], certain=certain, tools=tools)


def joined(
    syntax: ToolSyntax, pieces: Sequence[str], *, certain: bool = False, tools: Sequence[ToolSchema] = TOOLS
) -> tuple[str, list[Call]]:
    """The content and the calls of an answer. Errors: AnswerError; AssertionError for what a stream must not hold."""
    marks = (*syntax.marks, *syntax.foreign)
    scanner = CallScanner(syntax, CallRules(tools=tuple(tools), marks=marks, certain=certain))
    content, names, arguments = "", list[str](), list[str]()
    for found in (*map(scanner.feed, pieces), scanner.finish(cut=False)):
        content += found.content
        for delta in found.calls:
            if delta.name is not None:
                assert delta.index == len(names)
                assert delta.id
                names.append(delta.name)
                arguments.append("")
            assert delta.index == len(names) - 1, "pieces of a call come after its beginning"
            arguments[-1] += delta.arguments
    values = [json.loads(text, parse_constant=lambda name: 1 / 0) for text in arguments]
    assert all(isinstance(value, dict) for value in values), arguments
    return content, list(zip(names, values, strict=True))


def outcome(syntax: ToolSyntax, pieces: Sequence[str], *, certain: bool) -> Any:
    """What comes of an answer: its parts, or the code of the error that it ends with."""
    try:
        return joined(syntax, pieces, certain=certain)
    except AnswerError as error:
        return error.code
