"""Calls of tools in the syntaxes of all families: whatever a model tries, arguments that it ends are valid."""

import json

import pytest
from jsonschema import Draft202012Validator

from hf2q.errors import RequestError
from hf2q.serve.chat.calls import CallRules, CallScanner
from hf2q.serve.chat.constraints import Constraints
from hf2q.serve.chat.parsing import Parser
from hf2q.serve.chat.query import ChatQuery, Tool, ToolChoice
from hf2q.serve.chat.reasoning import ReasoningSplitter
from hf2q.serve.chat.syntax import ToolSchema
from hf2q.testing.random_answers import random_answer
from hf2q.testing.scripted import scripted_tokenizer
from hf2q_arch_deepseek4.calls import DsmlCalls
from hf2q_arch_gemma4.calls import GemmaCalls
from hf2q_arch_qwen3vl.calls import HermesCalls
from hf2q_arch_qwen35.calls import QwenCalls

SYNTAXES = {"qwen": QwenCalls(), "gemma": GemmaCalls(), "dsml": DsmlCalls(), "hermes": HermesCalls()}
MARKERS = ("<think>", "</think>")
TOKENIZER = scripted_tokenizer()
N_VOCAB = TOKENIZER.n_vocab

TODO = {"type": "object", "properties": {"t": {"type": "string", "maxLength": 4}, "done": {"type": "boolean"}}}
TODO |= {"required": ["t"], "additionalProperties": False}
NODE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/N"}}, "required": ["v"]}
NODE |= {"additionalProperties": False}
PARAMETERS = {
    "text": {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]},
    "numbers": {
        "type": "object",
        "properties": {
            "i": {"type": "integer", "minimum": -5, "maximum": 7},
            "n": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            "f": {"type": "integer", "format": "int32"},
            "b": {"type": "boolean"},
            "z": {"type": "null"},
        },
        "required": ["i", "n"],
    },
    "constants": {
        "type": "object",
        "properties": {
            "e": {"enum": ["C", "F", "one\ntwo"]},
            "m": {"enum": ["x", 1, None, True]},
            "c": {"const": {"k": [1, "v"]}},
            "o": {"type": ["string", "null"], "enum": ["p", None]},
        },
        "required": ["e", "m", "c", "o"],
    },
    "texts": {
        "type": "object",
        "properties": {
            "p": {"type": "string", "pattern": "^[A-Z]{2}\\d+$"},
            "l": {"type": "string", "minLength": 2, "maxLength": 4},
            "d": {"type": "string", "format": "date"},
            "u": {"anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]},
        },
        "required": ["p", "l", "d", "u"],
    },
    "nested": {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": TODO, "minItems": 1, "maxItems": 3},
            "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}
            | {"minItems": 2},
            "node": {"$ref": "#/$defs/N"},
            "map": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
        "required": ["items", "node"],
        "$defs": {"N": NODE},
    },
    "either": {
        "type": "object",
        "properties": {
            "a": {"type": ["string", "integer", "null"]},
            "b": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "boolean"}, TODO]},
            "c": {},
            "d": {"oneOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        },
        "required": ["a", "b"],
    },
    "many": {
        "type": "object",
        "properties": {f"p{number}": {"type": "integer", "minimum": 0, "maximum": 9} for number in range(9)},
        "required": ["p1", "p6"],
    },
    "nothing": {},
    "empty": {"type": "object", "properties": {}, "additionalProperties": False},
    "reference": {
        "$ref": "#/$defs/args",
        "$defs": {"args": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}},
    },
}
TOOLS = tuple(Tool(name=name, parameters=parameters) for name, parameters in PARAMETERS.items())


@pytest.fixture(scope="module")
def constraints():
    return Constraints(TOKENIZER, end_ids=TOKENIZER.eos_ids, n_vocab=N_VOCAB)


def schemas(tools):
    return tuple(ToolSchema(tool.name, tool.parameters) for tool in tools)


def form(constraints, syntax, tools=TOOLS, **query):
    made = ChatQuery(messages=(), tools=tools, **query)
    name = made.choice.name
    known = schemas(tool for tool in tools if name in (None, tool.name))
    return constraints.form(made, markers=MARKERS, inside=False, syntax=SYNTAXES[syntax], tools=known)


def read(syntax, text, *, required, cut, tools=TOOLS):
    """Content, and the calls of an answer: (name, JSON text)."""
    rules = CallRules(tools=schemas(tools), required=required, certain=True)
    parser = Parser(ReasoningSplitter(MARKERS, inside=False), CallScanner(SYNTAXES[syntax], rules))
    calls, content = {}, ""
    for delta in (parser.feed(text), parser.finish(cut=cut)):
        content += delta.content
        for call in delta.calls:
            name, arguments = calls.get(call.index, (call.name, ""))
            calls[call.index] = (name, arguments + call.arguments)
    return content, list(calls.values())


def check(calls):
    for name, arguments in calls:
        Draft202012Validator(PARAMETERS[name]).validate(json.loads(arguments))


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("syntax", SYNTAXES)
def test_named(constraints, syntax, name):
    made = form(constraints, syntax, choice=ToolChoice(mode="required", name=name), parallel=False)
    ended = 0
    for seed in range(8):
        answer = random_answer(made.constraint(), TOKENIZER, n_vocab=N_VOCAB, seed=seed, limit=600)
        if answer.finished:
            content, calls = read(syntax, answer.text, required=True, cut=False)
            assert content == ""
            assert [called for called, _ in calls] == [name]
            check(calls)
            ended += 1
    assert ended, answer.text


@pytest.mark.parametrize("mode", ["required", "auto"])
@pytest.mark.parametrize("syntax", SYNTAXES)
def test_any_tool(constraints, syntax, mode):
    made, found = form(constraints, syntax, choice=ToolChoice(mode=mode)), []
    opening = SYNTAXES[syntax].markers[0]
    for seed in range(24):
        answer = random_answer(
            made.constraint(),
            TOKENIZER,
            n_vocab=N_VOCAB,
            seed=seed,
            limit=1200 if syntax == "dsml" else 500,  # its marks are long, and each byte is a token here
            ending=2.0 if mode == "auto" else 8.0,
            goals=(opening, "</think>", '"', "}", "}}\n", "]", "\n</parameter>\n", "</｜DSML｜parameter>\n", '<|"|>'),
        )
        text = answer.text if answer.finished else answer.text.rstrip("\ufffd")  # half of a character
        _, calls = read(syntax, text, required=mode == "required", cut=not answer.finished)
        if answer.finished:
            check(calls)
            found += calls
    assert found


def takes(constraint, text):
    """Whether a model may say exactly `text` and end; else what it may say of it."""
    said = 0
    for token in TOKENIZER.encode(text, add_bos=False):
        mask = constraint.allowed()
        if not mask[token // 32] >> token % 32 & 1:
            return text.encode()[:said].decode("utf-8", "replace")
        constraint.accept(token)
        said += len(TOKENIZER.token_bytes(token))
    if constraint.complete:
        return True
    mask = constraint.allowed()
    return any(mask[token // 32] >> token % 32 & 1 for token in TOKENIZER.eos_ids)


WRITTEN = {
    "qwen": [
        "<tool_call>\n<function=text>\n<parameter=s>\n a <b>\n\n{1}\n\n</parameter>\n</function>\n</tool_call>",
        "Let me see.\n\n<tool_call>\n<function=empty>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=either>\n<parameter=b>\ntrue\n</parameter>\n<parameter=a>\n42\n</parameter>\n"
        "</function>\n</tool_call>",
        "<tool_call>\n<function=texts>\n<parameter=p>\nAB1\n</parameter>\n<parameter=l>\nabc\n</parameter>\n"
        "<parameter=d>\n2024-02-29\n</parameter>\n<parameter=u>\nnull\n</parameter>\n</function>\n</tool_call>",
    ],
    "gemma": [
        '<|tool_call>call:text{s:<|"|>a, {b}: "c"<|"|>}<tool_call|>',
        'Sure.<|tool_call>call:nested{items:[{done:true,t:<|"|>x<|"|>},{t:<|"|><|"|>}],node:{v:1,next:{v:-2}}}<tool_call|>'
        "<|tool_call>call:empty{}<tool_call|>",
        '<|tool_call>call:either{a:null,b:{t:<|"|>x<|"|>},c:[1,{k:<|"|>v<|"|>}]}<tool_call|>',
    ],
    "dsml": [
        '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="text">\n<｜DSML｜parameter name="s" string="true">a\n"b"'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="either">\n<｜DSML｜parameter name="a" string="false">42</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="b" string="true">abc</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="nested">\n<｜DSML｜parameter name="items" string="false">'
        '[{"t": "x", "done": true}]</｜DSML｜parameter>\n<｜DSML｜parameter name="node" string="false">{"v":1}'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ],
    "hermes": [
        '<tool_call>\n{"name": "text", "arguments": {"s": "a"}}\n</tool_call>',
        'Text\n<tool_call>\n{"name": "empty", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "numbers", "arguments": {"i": 1, "n": 0.5}}\n</tool_call>',
    ],
}


@pytest.mark.parametrize(("syntax", "text"), [(name, text) for name, texts in WRITTEN.items() for text in texts])
def test_what_templates_write_is_allowed(constraints, syntax, text):
    assert takes(form(constraints, syntax).constraint(), text) is True
    _, calls = read(syntax, text, required=True, cut=False)
    check(calls)


LOOP = {"type": "array", "items": {"$ref": "#/$defs/L"}}
LOOP = {"type": "object", "properties": {"l": {"$ref": "#/$defs/L"}}, "required": ["l"], "$defs": {"L": LOOP}}
AROUND = {
    "qwen": ("<tool_call>\n<function=loop>\n<parameter=l>\n", "\n</parameter>\n</function>\n</tool_call>"),
    "gemma": ("<|tool_call>call:loop{l:", "}<tool_call|>"),
    "dsml": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="loop">\n<｜DSML｜parameter name="l" string="false">',
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    "hermes": ('<tool_call>\n{"name": "loop", "arguments": {"l": ', "}}\n</tool_call>"),
}


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_what_nests_deep_is_allowed_and_read(constraints, syntax):
    """Deeper than Python's own reader of JSON goes. What is cut off is no error either."""
    tools = (Tool(name="loop", parameters=LOOP),)
    (before, behind), deep = AROUND[syntax], "[" * 1_200 + "]" * 1_200
    text = f"{before}{deep}{behind}"
    assert takes(form(constraints, syntax, tools, choice=ToolChoice(mode="required")).constraint(), text) is True
    assert read(syntax, text, required=True, cut=False, tools=tools)[1] == [("loop", f'{{"l": {deep}}}')]
    _, [(name, arguments)] = read(syntax, before + "[" * 1_200, required=True, cut=True, tools=tools)
    assert name == "loop"
    assert '{"l": '.startswith(arguments[:6])


@pytest.mark.parametrize(
    "value",
    [
        {"t": "a</parameter></function>", "done": True},
        {"t": '\\"</parameter><parameter=b>\\'},
        {"t": "</parameter>\n</function>\n</tool_call>"},
    ],
)
def test_what_looks_like_an_end_within_json_is_none(constraints, value):
    loose = {"type": "object", "properties": {"t": {"type": "string"}, "done": {"type": "boolean"}}}
    parameters = {"type": "object", "properties": {"v": loose, "w": {}}, "required": ["v", "w"]}
    tools = (Tool(name="f", parameters=parameters),)
    texts = [json.dumps(value), json.dumps([value, value["t"]]), json.dumps(value["t"])]
    for text in texts[1:]:
        call = (
            f"<function=f>\n<parameter=v>\n{texts[0]}\n</parameter>\n<parameter=w>\n{text}\n</parameter>\n</function>"
        )
        answer = f"<tool_call>\n{call}\n</tool_call>"
        assert takes(form(constraints, "qwen", tools).constraint(), answer) is True
        _, [(_, arguments)] = read("qwen", answer, required=True, cut=False, tools=tools)
        assert json.loads(arguments) == {"v": value, "w": json.loads(text)}


QWEN_TEXT = "<tool_call>\n<function=text>\n<parameter=s>\n"
DSML_TEXT = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="text">\n<｜DSML｜parameter name="s" '


@pytest.mark.parametrize(
    ("syntax", "text", "taken"),
    [
        ("qwen", "<tool_call>\n<function=sub>", "<tool_call>\n<function="),
        ("qwen", "<tool_call>\n<function=text>\n</function>", "<tool_call>\n<function=text>\n<"),
        ("qwen", "<tool_call>\n<function=text>\n<parameter=x", "<tool_call>\n<function=text>\n<parameter="),
        # behind such an end the reader goes on with the call
        ("qwen", f"{QWEN_TEXT}</parameter>\n</function>", f"{QWEN_TEXT}</parameter>\n</function"),
        ("qwen", f"{QWEN_TEXT}a</parameter> <parameter=", f"{QWEN_TEXT}a</parameter> <parameter"),
        ("qwen", f"{QWEN_TEXT}a</parameter> b</function>", False),  # taken, and not at its end
        ("gemma", '<|tool_call>call:text{s:"', "<|tool_call>call:text{s:"),
        ("gemma", "<|tool_call>call:text{}", "<|tool_call>call:text{"),
        ("dsml", f'{DSML_TEXT}string="false">null', f'{DSML_TEXT}string="'),
        ("hermes", '<tool_call>\n{"name": "text", "arguments": {}', '<tool_call>\n{"name": "text", "arguments": {'),
    ],
)
def test_what_breaks_the_schema_is_not(constraints, syntax, text, taken):
    assert takes(form(constraints, syntax).constraint(), text) == taken


def test_few_parameters_come_in_any_order(constraints):
    for order in ("ab", "ba"):
        tool = Tool(name="f", parameters={"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}})
        qwen = "".join(f"<parameter={name}>\n1\n</parameter>\n" for name in order)
        text = f"<tool_call>\n<function=f>\n{qwen}</function>\n</tool_call>"
        assert takes(form(constraints, "qwen", (tool,)).constraint(), text) is True
        text = f"<|tool_call>call:f{{{','.join(f'{name}:1' for name in order)}}}<tool_call|>"
        assert takes(form(constraints, "gemma", (tool,)).constraint(), text) is True


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ({"type": "object", "minProperties": 1}, "top"),
        ({"type": "object", "patternProperties": {"^a": True}}, "top"),
        ({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, "top"),
        ({"type": "object", "properties": {"a>b{": {"type": "string"}}}, "/properties/a>b{"),
    ],
)
@pytest.mark.parametrize("syntax", ["qwen", "gemma", "dsml"])
def test_what_a_syntax_cannot_hold_is_refused(constraints, syntax, parameters, path):
    tools = (*TOOLS, Tool(name="odd", parameters=parameters))
    with pytest.raises(RequestError) as caught:
        form(constraints, syntax, tools)
    assert caught.value.param == f"tools[{len(TOOLS)}].function.parameters"
    assert f"(at {'the ' if path == 'top' else ''}{path} of" in caught.value.message


def test_hundred_tools(constraints):
    tools = tuple(Tool(name=f"tool_{number}", parameters=PARAMETERS["nested"]) for number in range(100))
    for syntax in SYNTAXES:
        made = form(constraints, syntax, tools, choice=ToolChoice(mode="required"))
        random_answer(made.constraint(), TOKENIZER, n_vocab=N_VOCAB, seed=1, limit=50)
