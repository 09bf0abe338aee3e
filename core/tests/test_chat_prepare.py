"""A question with tools, a choice and an effort: what the template gets, and what is refused by name."""

import json

import pytest

from hf2q.errors import AnswerError, RequestError
from hf2q.serve.chat import Chat, ChatQuery, ChatTemplate, Message, ResponseFormat, Tool, ToolChoice
from hf2q.types import ChatFormat

BODY = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
SYNTAX = "test_chat_calls:Syntax"
F = Tool(name="f", description="does", parameters={"type": "object", "properties": {"a": {"type": "string"}}})
G = Tool(name="g-2_X")
USER = (Message(role="user", content="u"),)


@pytest.fixture
def chat(monkeypatch):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    opened = []

    def make(source=TOOLS + BODY, *, syntax=SYNTAX, reasoning=None):
        format = ChatFormat(name="x", tools=syntax, reasoning=reasoning)
        opened.append(Chat(ChatTemplate(source), format))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def asked(**fields):
    return ChatQuery(messages=USER, **fields)


def refused(chat, query, match):
    with pytest.raises(RequestError, match=match) as caught:
        chat.prepare(query)
    return caught.value


def test_tools_in_the_form_of_openai(chat):
    said = chat().prepare(asked(tools=(F, G))).text
    assert json.loads(said.removesuffix("[user]u")) == [
        {"type": "function", "function": {"name": "f", "description": "does", "parameters": dict(F.parameters)}},
        {"type": "function", "function": {"name": "g-2_X", "parameters": {"type": "object", "properties": {}}}},
    ]


PICKY = (
    "{% for t in tools or [] %}{{ t.function.name }}{% if t.function.description == 'bad' %}{{ raise_exception('no') }}"
    "{% endif %}{% for k, s in t.function.parameters.properties.items() %}{% if 'type' in s %}{{ k }}{% endif %}"
    "{% endfor %}{% endfor %}{% if (tools or []) | length > 2 %}{{ raise_exception('too many') }}{% endif %}" + BODY
)


@pytest.mark.parametrize(
    ("tools", "param", "says"),
    [
        (
            (G, Tool(name="h", parameters={"type": "object", "properties": {"a": {}, "b/c": True}})),
            "tools[1].function.parameters",
            "refuses the parameters of 'h': TypeError: argument of type 'bool' is not iterable "
            "(at /properties/b~1c of tools[1].function.parameters)",
        ),
        ((Tool(name="h", description="bad"), F), "tools[0]", "refuses the tool 'h': no"),
        ((Tool(name="h", parameters={"properties": 3}),), "tools[0].function.parameters", "the parameters of 'h': "),
        ((F, G, Tool(name="h")), "tools", "refuses these tools: too many"),
    ],
)
def test_a_template_that_refuses_a_tool(chat, tools, param, says):
    error = refused(chat(PICKY), asked(tools=tools), "refuses")
    assert (error.param, error.code) == (param, "chat_template_error")
    assert says in error.message


def test_a_template_that_refuses_the_dialogue_with_and_without_tools(chat):
    made = chat(PICKY + "{% if messages[0].content == 'bad' %}{{ raise_exception('bad') }}{% endif %}")
    query = ChatQuery(messages=(Message(role="user", content="bad"),), tools=(F,))
    assert refused(made, query, "refuses these messages: bad").param == "messages"


def test_no_tools_for_a_choice_of_none(chat):
    made = chat()
    question = made.prepare(asked(tools=(F,), choice=ToolChoice(mode="none")))
    assert question.text == "[user]u"
    parser = question.parser()
    text = '<c>f {"a": 1}</c>'
    assert parser.feed(text).content + parser.finish().content == text
    assert not parser.called


def test_a_parser_for_each_answer(chat):
    question = chat().prepare(asked(tools=(F,)))
    ids = set()
    for _ in range(2):
        parser = question.parser()
        found = parser.feed("hm <c>f {}</c>")
        assert parser.finish() == ("", "", ())
        assert (found.content, [(c.index, c.name, c.arguments) for c in found.calls]) == ("hm", [(0, "f", "{}")])
        assert parser.called
        ids.add(found.calls[0].id)
    assert len(ids) == 2


def test_a_named_tool_is_the_only_one(chat):
    made = chat()
    with pytest.raises(RequestError, match="without the model's tokenizer"):
        made.prepare(asked(tools=(F, G), choice=ToolChoice(mode="required", name="f")))


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"choice": ToolChoice(mode="required")}, "tool_choice", "there are no tools"),
        ({"tools": (F,), "choice": ToolChoice(mode="required", name="h")}, "tool_choice", "none of the tools"),
        ({"tools": (F, G, F)}, "tools[2].function.name", "an earlier tool"),
        ({"tools": (Tool(name="a b"),)}, "tools[0].function.name", "expected 1 to 64"),
        ({"tools": (Tool(name=""),)}, "tools[0].function.name", "expected 1 to 64"),
        ({"tools": (Tool(name="x" * 65),)}, "tools[0].function.name", "expected 1 to 64"),
        ({"tools": (Tool(name="é"),)}, "tools[0].function.name", "expected 1 to 64"),
        ({"format": ResponseFormat(kind="json_object")}, "response_format", "cannot be honoured"),
        ({"thinking_budget": 3}, "thinking_token_budget", "cannot be honoured"),
    ],
)
def test_refused_by_name(chat, fields, param, told):
    assert refused(chat(), asked(**fields), told).param == param


def test_models_that_cannot_be_told_of_tools(chat):
    error = refused(chat(syntax=""), asked(tools=(F,)), "how its family writes calls is not known")
    assert (error.param, error.code) == ("tools", "unsupported_parameter")
    error = refused(chat(BODY), asked(tools=(F,)), "its chat template does not show them")
    assert (error.param, error.code) == ("tools", "unsupported_parameter")
    assert "--chat-template-file" in error.hint
    assert chat(BODY, syntax="").prepare(asked(tools=(F,), choice=ToolChoice(mode="none"))).text == "[user]u"


SWITCH = BODY + "{{ enable_thinking }}"
TWO = BODY + "{{ enable_thinking }}{{ thinking }}"
LEVEL = BODY + "{{ reasoning_effort }}"
BOTH = BODY + "{{ reasoning_effort }}/{{ enable_thinking }}"
KNOWN = BODY + "{% if reasoning_effort == 'high' %}HIGH{% elif reasoning_effort == 'max' %}MAX{% endif %}"
THINK = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("source", "effort", "expected"),
    [
        (SWITCH, None, ""),
        (SWITCH, "none", "False"),
        (SWITCH, "minimal", "False"),
        (SWITCH, "low", "True"),
        (SWITCH, "max", "True"),
        (TWO, "none", "FalseFalse"),
        (TWO, "high", "TrueTrue"),
        (LEVEL, "none", "none"),
        (LEVEL, "high", "high"),
        (KNOWN, "low", ""),
        (KNOWN, "high", "HIGH"),
        (KNOWN, "xhigh", "MAX"),
        (KNOWN.replace("'max'", "'x'"), "xhigh", "HIGH"),
        (KNOWN.replace("'max'", "'xhigh'"), "max", "MAX"),
        (BOTH, "none", "/False"),
        (BOTH, "xhigh", "xhigh/True"),
    ],
)
def test_effort_in_the_terms_of_the_template(chat, source, effort, expected):
    assert chat(source, reasoning=THINK).prepare(asked(effort=effort)).text == f"[user]u{expected}"


def test_effort_that_would_change_nothing(chat):
    error = refused(chat(BODY, reasoning=THINK), asked(effort="none"), "reads none of reasoning_effort")
    assert error.param == "reasoning_effort"
    refused(chat(BODY), asked(effort="medium"), "reads none of")
    assert chat(BODY).prepare(asked(effort="none")).text == "[user]u"


def test_effort_and_options_that_contradict_each_other(chat):
    made = chat(BOTH, reasoning=THINK)
    error = refused(made, asked(effort="low", options={"enable_thinking": False}), "give one of them")
    assert error.param == "reasoning_effort"
    refused(made, asked(effort="low", options={"reasoning_effort": "high"}), "give one of them")
    assert made.prepare(asked(effort="low", options={"enable_thinking": True})).text == "[user]ulow/True"


def test_a_call_behind_reasoning(chat):
    question = chat(TOOLS + BODY + "<think>", reasoning=THINK).prepare(asked(tools=(F,)))
    parser = question.parser()
    found = [parser.feed(piece) for piece in ("<c>f {}", "</c> no</thi", "nk>\n\nok <c>f ", "{}</c>")]
    assert "".join(delta.reasoning for delta in found) == "<c>f {}</c> no"
    assert "".join(delta.content for delta in found) == "ok"
    assert [call.name for delta in found for call in delta.calls] == ["f"]
    assert not AnswerError("x").code
