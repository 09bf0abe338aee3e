"""Calls are found in answers, streamed where their form is certain, and what is no call stays text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.errors import AnswerError
from hf2q.serve.chat import ReasoningSplitter
from hf2q.serve.chat.calls import CallRules, CallScanner, scrubbed
from hf2q.serve.chat.parsing import Parser
from hf2q.serve.chat.reading import Reading
from hf2q.serve.chat.syntax import ToolSchema

TOOLS = (ToolSchema("f", {}), ToolSchema("g", {}))


class Reader(Reading):
    """``name {json}`` once or more, separated by ``;``."""

    def body(self):
        more = True
        while more:
            yield from self.space()
            self.begin((yield from self.until(" ", most=5)))
            yield from self.json_object(self.say)
            self.end()
            yield from self.space()
            more = (yield from self.either(";", "</c>")) == ";"


class Syntax:
    markers = ("<c>", "</c>")
    marks = ("<c>", "</c>")
    foreign = ("<turn>",)

    def reader(self, tools):
        return Reader(tools)


def scan(pieces, *, cut=False, **rules):
    """Content, calls as (name, arguments) and the deltas of an answer."""
    scanner = CallScanner(Syntax(), CallRules(tools=TOOLS, marks=("<c>", "</c>", "<turn>", "<think>"), **rules))
    found = [*map(scanner.feed, pieces), scanner.finish(cut=cut)]
    deltas = [delta for part in found for delta in part.calls]
    calls = {}
    for delta in deltas:
        if delta.name is not None:
            assert delta.index == len(calls)
            calls[delta.index] = [delta.name, ""]
        calls[delta.index][1] += delta.arguments
    assert scanner.called == bool(calls)
    return "".join(part.content for part in found), [tuple(call) for call in calls.values()], deltas


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("just text", "just text", []),
        (" spaces stay \n", " spaces stay \n", []),
        ("a <b> and <", "a <b> and <", []),
        ("<c>f {}</c>", "", [("f", "{}")]),
        (" \n<c> f {}\n</c>\n\n", "", [("f", "{}")]),
        ("Look: \n\n<c>f {}</c>", "Look:", [("f", "{}")]),
        ("<c>f {}</c> and <c>g {}</c> done", "", [("f", "{}"), ("g", "{}")]),
        ("<c>f {};g {}</c>", "", [("f", "{}"), ("g", "{}")]),
        ("<c>f {", "f {", []),
        ("a <c>h {}</c> b", "a h {} b", []),
        ("a <c>f nonsense</c>b<c>g {}</c>", "a f nonsenseb", [("g", "{}")]),
        ("a <c>f nonsense<c>g {}</c>", "a f nonsense", [("g", "{}")]),
        ("<c>f {};h {}</c>", ";h {}", [("f", "{}")]),
        ("<c>f {};g {", ";g {", [("f", "{}")]),
        ("<c>f {}", "", [("f", "{}")]),
        ('<c>f {"a": 1, "a": {"b": 2, "b": 3}}</c>', "", [("f", '{"a": 1, "a": {"b": 2, "b": 3}}')]),
        ("<c></c>", "", []),
        ("<c><c>f {}</c>", "f {}", []),
        ('<c>f {"a": "x<turn>y"}</c>', 'f {"a": "xy"}', []),
        ("<c>f <think>x</c>", "f x", []),
        ("</c> alone", "</c> alone", []),
    ],
)
def test_content_and_calls(text, content, calls):
    for step in (1, 2, 5, max(1, len(text))):
        pieces = [text[at : at + step] for at in range(0, len(text), step)]
        assert scan(pieces)[:2] == (content, calls), step


def test_values_nest_as_deep_as_they_like():
    """A schema may refer to itself, and then only the length of the answer ends a value."""
    deep = "[" * 5_000 + '{"a": [1, {}]}' + "]" * 5_000
    assert scan([f'<c>f {{"a": {deep}}}</c>'], certain=True)[1] == [("f", f'{{"a": {deep}}}')]
    for text in (
        '<c>f {"a": [[1}]}</c>',
        '<c>f {"a": [1,]}</c>',
        "<c>f {,}</c>",
        '<c>f {"a": [,1]}</c>',
        "<c>f [1]</c>",
    ):
        assert scan([text])[1] == [], text


def test_ids_are_new_each_time():
    deltas = scan(["<c>f {};g {}</c>"])[2] + scan(["<c>f {}</c>"])[2]
    ids = {delta.id for delta in deltas}
    assert len(ids) == 3
    for id in ids:
        word, _, rest = id.partition("_")
        assert word == "call"
        assert len(rest) == 24
        assert set(rest) <= set("0123456789abcdef")


def test_an_uncertain_call_comes_when_it_is_whole():
    text = '<c>f {"a": "b c"}</c>'
    assert [delta.arguments for delta in scan(list(text))[2]] == ['{"a": "b c"}']


def test_a_certain_call_comes_as_it_is_written():
    deltas = scan(list('<c>f {"a": "b c"}</c>'), certain=True)[2]
    assert (deltas[0].name, deltas[0].arguments) == ("f", "")
    assert len(deltas) > 8
    assert "".join(delta.arguments for delta in deltas) == '{"a": "b c"}'
    assert all(delta.id is None and delta.name is None for delta in deltas[1:])


def test_a_certain_call_may_speak_of_turns():
    assert scan(['<c>f {"a": "<turn>"}</c>'], certain=True)[1] == [("f", '{"a": "<turn>"}')]


def test_what_was_sent_cannot_be_taken_back():
    for text in ('<c>f {"a" 1}</c>', '<c>f {"a": 1'):
        with pytest.raises(AnswerError) as caught:
            scan(list(text), certain=True)
        assert caught.value.code == "tool_call_parse_failure"
    # cut off by the length: the part stays a part
    assert scan(list('<c>f {"a": 1'), certain=True, cut=True)[1] == [("f", '{"a": ')]
    assert scan(list("<c>h {}</c>"), certain=True)[:2] == ("h {}", [])


def test_a_required_call():
    assert scan(["<c>f {}</c>"], required=True)[1] == [("f", "{}")]
    assert scan(["<c>f no</c><c>f {}</c>"], required=True)[1] == [("f", "{}")]
    for text in ("", "no", "<c>f {", "<c>h {}</c>"):
        with pytest.raises(AnswerError) as caught:
            scan([text], required=True)
        assert caught.value.code == "tool_call_parse_failure"
        assert scan([text], required=True, cut=True)[1] == []


def test_one_call_alone():
    for certain in (False, True):
        assert scan(list("<c>f {};g {}</c><c>g {}</c>"), parallel=False, certain=certain)[1] == [("f", "{}")]


def test_scrubbing_leaves_no_mark():
    assert scrubbed("a<c<c>>b</c>", ("<c>", "</c>")) == "ab"


ALPHABET = st.sampled_from(
    ["<c>", "</c>", "f {}", "g ", '{"a": "', '"}', "<turn>", "<", "c>", " ", "\n", "x", ";", "<think>", "</think>", "é"]
)


@settings(max_examples=200)
@given(st.lists(ALPHABET, max_size=14).map("".join), st.booleans(), st.booleans(), st.booleans(), st.data())
def test_cuts_do_not_matter(text, certain, required, inside, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def outcome(pieces):
        rules = CallRules(tools=TOOLS, marks=("<c>", "</c>"), certain=certain, required=required)
        parser = Parser(ReasoningSplitter(("<think>", "</think>"), inside=inside), CallScanner(Syntax(), rules))
        reasoning = content = ""
        calls = []
        try:
            for delta in (*map(parser.feed, pieces), parser.finish()):
                reasoning, content = reasoning + delta.reasoning, content + delta.content
                for call in delta.calls:
                    if call.name is not None:
                        calls.append([call.name, ""])
                    calls[-1][1] += call.arguments
        except AnswerError as error:
            assert certain or required
            return error.code
        for _, arguments in calls:
            assert isinstance(json.loads(arguments), dict)
        return reasoning, content, calls

    assert outcome(pieces) == outcome([text])
