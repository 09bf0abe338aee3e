"""The syntaxes of all families: odd answers in each, and any text cut anywhere."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.errors import AnswerError
from hf2q.plugins import Plugins
from hf2q.serve.chat import ReasoningSplitter
from hf2q.serve.chat.calls import CallRules, CallScanner
from hf2q.serve.chat.parsing import Parser
from hf2q.serve.chat.syntax import ToolSchema
from hf2q.types import resolve

TOOLS = (
    ToolSchema(
        "f",
        {
            "type": "object",
            "properties": {
                "s": {"type": "string"},
                "n": {"type": "integer"},
                "m": {"type": "object", "properties": {"s": {"type": "string"}}},
                "l": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["s"],
        },
    ),
    ToolSchema("g", {}),
)
PARTS = {
    "qwen": [
        *("<tool_call>", "</tool_call>", "<function=f>", "<function=g>", "<function=h>", "</function>"),
        *("<parameter=s>", "<parameter=n>", "</parameter>", "\n", "42", "null", "{}"),
    ],
    "qwen3vl": [
        *("<tool_call>", "</tool_call>", '{"name": "f", "arguments": ', '{"name": "g"', "{", "}", '"s": ', '"', "42"),
        *("\\", "\n", ",", "null"),
    ],
    "gemma4": [
        *("<|tool_call>", "<tool_call|>", "call:f{", "call:g{", "call:h{", "}", "s:", "n:", '<|"|>', "42", "null"),
        *("[", "]", ",", "{", "<|channel>", "<turn|>"),
    ],
    "deepseek4": [
        *("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", '<｜DSML｜invoke name="f">', '<｜DSML｜invoke name="h">'),
        *(
            "</｜DSML｜invoke>",
            '<｜DSML｜parameter name="s" string="true">',
            '<｜DSML｜parameter name="n" string="false">',
        ),
        *("</｜DSML｜parameter>", "\n", "42", "null", "<｜User｜>"),
    ],
}
"""Pieces of answers, by the family's chat format."""

FORMATS = {name: Plugins.load().chat_format(name) for name in PARTS}


def parse(name, pieces, *, certain=False, required=False, cut=False):
    """Reasoning, content and calls as (name, arguments text)."""
    syntax = resolve(FORMATS[name].tools)()
    markers = FORMATS[name].reasoning
    rules = CallRules(tools=TOOLS, marks=(*syntax.marks, *syntax.foreign), certain=certain, required=required)
    parser = Parser(ReasoningSplitter(markers, inside=False), CallScanner(syntax, rules))
    reasoning = content = ""
    calls = []
    for delta in (*map(parser.feed, pieces), parser.finish(cut=cut)):
        reasoning, content = reasoning + delta.reasoning, content + delta.content
        for call in delta.calls:
            if call.name is not None:
                calls.append([call.name, ""])
            calls[call.index][1] += call.arguments
    return reasoning, content, [tuple(call) for call in calls]


def qwen(*parameters, name="f"):
    body = "".join(f"<parameter={key}>{value}</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def dsml(*parameters):
    body = "".join(
        f'<｜DSML｜parameter name="{key}" string="{kind}">{value}</｜DSML｜parameter>\n'
        for key, kind, value in parameters
    )
    return f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n{body}</｜DSML｜invoke>\n</｜DSML｜tool_calls>'


def gemma(body):
    return f"<|tool_call>call:f{body}<tool_call|>"


def hermes(body):
    return f"<tool_call>\n{body}\n</tool_call>"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("qwen", qwen(("s", "\n42\n")), {"s": "42"}),
        ("qwen", qwen(("s", "x")), {"s": "x"}),
        ("qwen", qwen(("s", "\n\n x \n\n")), {"s": "\n x \n"}),
        ("qwen", qwen(("s", "\n")), {"s": ""}),
        ("qwen", qwen(("s", "")), {"s": ""}),
        (
            "qwen",
            qwen(("s", "\n<parameter=n>\n1\n</parameter>\nmore\n")),
            {"s": "<parameter=n>\n1\n</parameter>\nmore"},
        ),
        ("qwen", qwen(("s", "\n</parameter></parameter>\n")), {"s": "</parameter></parameter>"}),
        ("qwen", qwen(("n", "\n 42\n")), {"n": 42}),
        ("qwen", qwen(("n", "\nNone\n")), {"n": None}),
        ("qwen", qwen(("n", "\nforty\n")), {"n": "forty"}),
        ("qwen", qwen(("m", '\n{"s": "1",\n "x": [1, {"y": null}]}\n')), {"m": {"s": "1", "x": [1, {"y": None}]}}),
        ("qwen", qwen(("other", "\n42\n"), ("more", "\nx y\n")), {"other": 42, "more": "x y"}),
        ("qwen", qwen(("s", '\n"é" 東京 \U0001f600\n')), {"s": '"é" 東京 \U0001f600'}),
        ("qwen", "<tool_call><function=f><parameter=s>\na\n</parameter></function></tool_call>", {"s": "a"}),
        ("qwen", qwen(("s", "\na\n")).removesuffix("\n</tool_call>"), {"s": "a"}),
        ("qwen3vl", hermes('{"name": "f", "arguments": {"s": "42", "n": 42}}'), {"s": "42", "n": 42}),
        (
            "qwen3vl",
            hermes('{"arguments":{"m":{"a":[1.5e3,-0,true,null]}},"name":"f"}'),
            {"m": {"a": [1500.0, 0, True, None]}},
        ),
        ("qwen3vl", hermes('{"name":"f"}'), {}),
        ("qwen3vl", hermes('{"name": "f", "arguments": {"s": "a\nb\tc\\u00e9\\n"}}'), {"s": "a\nb\tcé\n"}),
        ("qwen3vl", hermes('{"name": "f", "arguments": {"s": "</tool_call>"}}'), {"s": "</tool_call>"}),
        ("gemma4", gemma('{s:<|"|>42<|"|>,n:42}'), {"s": "42", "n": 42}),
        ("gemma4", gemma("{s:42,n:-1.5}"), {"s": "42", "n": -1.5}),
        ("gemma4", gemma("{s:true,x:true,y:yes,z:null}"), {"s": "true", "x": True, "y": "yes", "z": None}),
        (
            "gemma4",
            gemma('{m:{s:1,<|"|>a b<|"|>:{},"c":[]},l:[<|"|>a, b<|"|>,2]}'),
            {"m": {"s": "1", "a b": {}, "c": []}, "l": ["a, b", "2"]},
        ),
        ("gemma4", gemma("{s:None,l:[None,True],n:False}"), {"s": None, "l": [None, "True"], "n": False}),
        ("gemma4", gemma('{ s : "a\\"b" , n : 1 }'), {"s": 'a"b', "n": 1}),
        ("gemma4", gemma('{s:<|"|>}{]["\n\\<|<|"|>}'), {"s": '}{]["\n\\<|'}),
        ("deepseek4", dsml(("s", "true", " 42\n")), {"s": " 42\n"}),
        ("deepseek4", dsml(("s", "false", "42"), ("n", "false", "42")), {"s": "42", "n": 42}),
        ("deepseek4", dsml(("s", "false", '"a b"')), {"s": "a b"}),
        ("deepseek4", dsml(("m", "false", '{"a":[1,2]}'), ("l", "false", '[ "a" ]')), {"m": {"a": [1, 2]}, "l": ["a"]}),
        ("deepseek4", dsml(("x", "true", "</｜DSML｜invoke> <b>")), {"x": "</｜DSML｜invoke> <b>"}),
        # of a key that comes twice the last value counts, as everywhere in JSON
        ("qwen", qwen(("s", "\na\n"), ("s", "\nb\n")), {"s": "b"}),
        ("qwen3vl", hermes('{"name": "f", "arguments": {"s": 1, "s": 2}}'), {"s": 2}),
        ("gemma4", gemma("{s:1,s:2}"), {"s": "2"}),
        ("deepseek4", dsml(("n", "false", "1"), ("n", "false", "2")), {"n": 2}),
    ],
)
def test_arguments(name, text, expected):
    for certain in (False, True):
        reasoning, content, calls = parse(name, [*f"Hm.\n{text}"], certain=certain)
        assert (reasoning, content) == ("", "Hm.")
        [(called, arguments)] = calls
        assert called == "f"
        assert json.loads(arguments) == expected


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("qwen3vl", hermes('{"name": "f", "arguments": ' + '{"a": ' * 100 + "1" + "}" * 100 + "}"), "a"),
        ("gemma4", gemma("{m:" * 100 + "1" + "}" * 100), "m"),
    ],
)
def test_values_may_be_nested_deeply(name, text, key):
    _, _, [(called, arguments)] = parse(name, [text])
    assert called == "f"
    assert arguments.replace(" ", "") == f'{{"{key}":' * 100 + "1" + "}" * 100


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen", qwen(("s", "\na<think>b\n"))),
        ("qwen", qwen(name="h")),
        ("qwen", "<tool_call>\n<function=f>\ntext</function></tool_call>"),
        ("qwen", '<tool_call>\n{"name": "f"}\n</tool_call>'),
        ("qwen3vl", hermes('{"name": "f", "arguments": {"s": 1,}}')),
        ("qwen3vl", hermes('{"name": "f", "arguments": {"s": 01}}')),
        ("qwen3vl", hermes('{"name": "f", "arguments": {"s": NaN}}')),
        ("qwen3vl", hermes('{"name": "f", "arguments": [1]}')),
        ("qwen3vl", hermes('{"name": "f", "arguments": {"s": "\\x"}}')),
        ("qwen3vl", hermes('{"name": "f", "other": 1}')),
        ("qwen3vl", hermes('{"arguments": {}}')),
        ("gemma4", gemma("{s:}")),
        ("gemma4", gemma('{s:<|"|>a<|channel>b<|"|>}')),
        ("gemma4", "<|tool_call>call:h{}<tool_call|>"),
        ("deepseek4", dsml(("s", "false", "null"))),
        ("deepseek4", dsml(("n", "false", "forty"))),
        ("deepseek4", dsml(("n", "maybe", "1"))),
        ("deepseek4", "<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>"),
    ],
)
def test_no_call(name, text):
    syntax = resolve(FORMATS[name].tools)()
    _, content, calls = parse(name, [text])
    assert calls == []
    assert not any(mark in content for mark in (*syntax.marks, *syntax.foreign))


@pytest.mark.parametrize("name", PARTS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_cuts_do_not_matter(name, data):
    markers = FORMATS[name].reasoning
    pieces = st.sampled_from([*PARTS[name], *markers, " ", "x", '"é', "<"])
    # begin like a call as often as not
    start = data.draw(st.sampled_from(["", *(PARTS[name][0] + part for part in PARTS[name][2:5])]))
    text = start + "".join(data.draw(st.lists(pieces, max_size=14)))
    certain, required = data.draw(st.booleans()), data.draw(st.booleans())
    cut = data.draw(st.booleans())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))

    def outcome(pieces):
        try:
            found = parse(name, pieces, certain=certain, required=required, cut=cut)
        except AnswerError as error:
            return (error.code, certain or required) == ("tool_call_parse_failure", True) or "wrong error"
        for called, arguments in found[2]:
            assert called in ("f", "g")
            if not (cut and certain):
                assert isinstance(json.loads(arguments), dict)
        return found

    assert outcome([text]) != "wrong error"
    assert outcome([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]) == outcome([text])
