"""What a template is given of a dialogue: calls, results, system messages; and what of it is refused, by its place."""

import pytest

from hf2q.errors import RequestError
from hf2q.serve.chat import Chat, ChatTemplate, Message, ToolCall

CALLS = (ToolCall(id="c1", name="f", arguments='{"k": [1, "é"]}'), ToolCall(id="c2", name="g", arguments="{}"))
TURNS = (
    Message(role="user", content="u"),
    Message(role="assistant", content="", tool_calls=CALLS),
    Message(role="tool", content="r1", tool_call_id="c1"),
    Message(role="tool", content="r2", tool_call_id="c2"),
)

BODY = "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
CALL = "{% for c in m.tool_calls or [] %}<{{ c.id }} {{ c.type }} {{ c.function.name }} "
END = ">{% endfor %}{% if m.role == 'tool' %}({{ m.tool_call_id }} {{ m.name }}){% endif %}{% endfor %}"
AS_OBJECT = BODY + CALL + "{{ c.function.arguments | tojson }}" + END
ITEMS = BODY + CALL + "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}" + END
AS_TEXT = BODY + CALL + "{{ 'args: ' + c.function.arguments }}" + END
PRINTED = BODY + CALL + "{{ c.function.arguments }}" + END
NO_CALLS = BODY + "{% endfor %}"

FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('not first') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
DROPS_LATER = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}[{{ m.role }}]{{ m.content }}{% endif %}"
    "{% endfor %}"
)


@pytest.fixture
def shown():
    opened = []

    def show(source, turns):
        opened.append(Chat(ChatTemplate(source)))
        return opened[-1].prompt(turns).text

    yield show
    for chat in opened:
        chat.close()


@pytest.mark.parametrize(
    ("source", "first", "second"),
    [
        (AS_OBJECT, '{"k": [1, "é"]}', "{}"),
        (ITEMS, "k=[1, 'é']", ""),
        (AS_TEXT, 'args: {"k": [1, "é"]}', "args: {}"),
        (PRINTED, '{"k": [1, "é"]}', "{}"),
    ],
    ids=["as JSON", "by item", "as text", "printed"],
)
def test_arguments_in_the_form_the_template_takes(shown, source, first, second):
    assert shown(source, TURNS) == (
        f"[user]u[assistant]<c1 function f {first}><c2 function g {second}>[tool]r1(c1 f)[tool]r2(c2 g)"
    )


def test_calls_that_would_not_be_shown_are_refused(shown):
    with pytest.raises(RequestError, match="template does not show them") as caught:
        shown(NO_CALLS, TURNS)
    assert caught.value.param == "messages[1].tool_calls"


def test_names_of_participants(shown):
    turns = (Message(role="user", content="u", name="Al"),)
    assert shown("{% for m in messages %}{{ m.name }}: {{ m.content }}{% endfor %}", turns) == "Al: u"
    with pytest.raises(RequestError, match="does not show names") as caught:
        shown(NO_CALLS, turns)
    assert caught.value.param == "messages[0].name"


def call(arguments="{}", *, id="c1", name="f", role="assistant"):
    return Message(role=role, content="", tool_calls=(ToolCall(id=id, name=name, arguments=arguments),))


def result(id="c1", **fields):
    return Message(role="tool", content="r", tool_call_id=id, **fields)


ARGUMENTS = "messages[0].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("turns", "param", "told"),
    [
        ([call("")], ARGUMENTS, "is no JSON"),
        ([call("{'a': 1}")], ARGUMENTS, "is no JSON"),
        ([call('{"a": 1')], ARGUMENTS, "is no JSON"),
        ([call("[1]")], ARGUMENTS, "expected the text of a JSON object"),
        ([call("3")], ARGUMENTS, "expected the text of a JSON object"),
        ([call('{"a": NaN}')], ARGUMENTS, "is no JSON"),
        ([call('{"a": 1e999}')], ARGUMENTS, "is no JSON"),
        ([call('{"a": "\\ud800"}')], ARGUMENTS, "is no JSON"),
        ([call("[" * 100000)], ARGUMENTS, "is no JSON"),
        ([call(id="")], "messages[0].tool_calls[0].id", "is empty"),
        ([call(name="")], "messages[0].tool_calls[0].function.name", "is empty"),
        ([call(role="user")], "messages[0].tool_calls", "for messages of the assistant"),
        ([result()], "messages[0].tool_call_id", "is the id of no call"),
        ([call(), result("c2")], "messages[1].tool_call_id", "is the id of no call"),
        ([result(), call()], "messages[0].tool_call_id", "is the id of no call"),
        ([call(), result(None)], "messages[1].tool_call_id", "is missing"),
        ([call(), result(name="g")], "messages[1].name", "the call was of 'f'"),
        (
            [Message(role="user", content="u", tool_call_id="c1")],
            "messages[0].tool_call_id",
            "for messages of the role",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(shown, turns, param, told):
    with pytest.raises(RequestError, match=told) as caught:
        shown(AS_OBJECT, turns)
    assert caught.value.param == param


def turns(*given):
    return [Message(role=role, content=content) for role, content in given]


@pytest.mark.parametrize("source", [FIRST_ONLY, DROPS_LATER], ids=["raises", "drops"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([("system", "a"), ("user", "u")], "[system]a[user]u"),
        ([("developer", "a"), ("user", "u")], "[system]a[user]u"),
        ([("system", "a"), ("developer", "b"), ("user", "u")], "[system]a\n\nb[user]u"),
        ([("user", "u"), ("system", "a")], "[user]u[user]a"),
        ([("user", "u"), ("assistant", "v"), ("system", "a"), ("user", "w")], "[user]u[assistant]v[user]a\n\nw"),
        ([("user", "u"), ("system", "a"), ("system", "b"), ("assistant", "v")], "[user]u[user]a\n\nb[assistant]v"),
    ],
)
def test_system_messages_where_only_the_first_is_shown(shown, source, given, expected):
    assert shown(source, turns(*given)) == expected


def test_system_messages_stay_where_they_are_shown(shown):
    given = turns(("system", "a"), ("system", "b"), ("user", "u"), ("developer", "c"))
    assert shown(NO_CALLS, given) == "[system]a[system]b[user]u[system]c"


def test_a_system_message_does_not_swallow_images(shown):
    source = FIRST_ONLY.replace("{{ m.content }}", "{{ m.content if m.content is string else m.content | length }}")
    given = [*turns(("user", "u"), ("system", "a")), Message(role="user", content="w", images=1)]
    assert shown(source, given) == "[user]u[user]a[user]2"
