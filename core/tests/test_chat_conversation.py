"""Messages become a prompt in the form the template takes; options it does not know are refused."""

import pytest

from hf2q.errors import LoadError, RequestError
from hf2q.serve.chat import Chat, ChatTemplate, Message
from hf2q.types import ChatFormat

BODY = "{% for m in messages %}[{{ m.role }}]"
TEXT_ONLY = BODY + "{{ m.content | trim }}{% endfor %}"
PARTS_ONLY = BODY + "{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
BOTH = (
    BODY + "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}|{% endfor %}"
    "{% endif %}{% endfor %}"
)
TURNS = (Message(role="system", content="s"), Message(role="user", content=("a", "b")))
FORMAT = ChatFormat(name="x", reasoning=("<think>", "</think>"))


@pytest.fixture
def chat():
    opened = []

    def make(source, format=None):
        opened.append(Chat(ChatTemplate(source) if source is not None else None, format))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (TEXT_ONLY, "[system]s[user]a\nb"),
        (PARTS_ONLY, "[system]s[user]ab"),
        (BOTH, "[system]s[user]a|b|"),
    ],
    ids=["text only", "parts only", "both"],
)
def test_content_in_the_form_the_template_takes(chat, source, expected):
    assert chat(source).prompt(TURNS).text == expected


def test_template_that_wants_a_system_message_first(chat):
    source = "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}" + TEXT_ONLY
    assert chat(source).prompt(TURNS).text == "[system]s[user]a\nb"


def test_template_that_drops_the_text():
    with pytest.raises(LoadError, match="without its text"):
        Chat(ChatTemplate("{% for m in messages %}[{{ m.role }}]{% endfor %}"))


def test_no_template(chat):
    with pytest.raises(RequestError, match="no chat template") as caught:
        chat(None).prompt(TURNS)
    assert caught.value.code == "no_chat_template"
    assert "--chat-template-file" in caught.value.hint


def test_reasoning_of_earlier_turns_is_passed_on(chat):
    source = "{% for m in messages %}{{ m.content }}({{ m.reasoning_content }}){% endfor %}"
    turns = (Message(role="assistant", content="a", reasoning="r"), Message(role="user", content="b"))
    assert chat(source).prompt(turns).text == "a(r)b()"


@pytest.mark.parametrize(
    ("end", "inside"),
    [("", False), ("<think>", True), ("<think>\n", True), ("<think>\n\n</think>\n\n", False), ("</think>", False)],
)
def test_prompt_knows_whether_reasoning_is_open(chat, end, inside):
    prompt = chat(TEXT_ONLY + end, FORMAT).prompt(TURNS)
    assert prompt.reasoning is inside
    assert chat(TEXT_ONLY + end, None).prompt(TURNS).reasoning is False


def test_splitter_begins_where_the_prompt_ends(chat):
    thinking = chat(TEXT_ONLY + "{% if enable_thinking %}<think>{% endif %}", FORMAT)
    opened = thinking.splitter(thinking.prompt(TURNS, {"enable_thinking": True}))
    closed = thinking.splitter(thinking.prompt(TURNS, {"enable_thinking": False}))
    assert opened.feed("a</think>b") == ("a", "b")
    assert closed.feed("a</think>b") == ("", "a</think>b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"enable_thinkin": True},
            "cannot set 'enable_thinkin' for the model's chat template; it can set: enable_thinking",
        ),
        ({"enable_thinking": "false"}, "expected true or false"),
        ({"enable_thinking": 0}, "expected true or false"),
        ({"messages": []}, "cannot set 'messages'"),
        ({"add_generation_prompt": False}, "cannot set 'add_generation_prompt'"),
        ({"bos_token": "x"}, "cannot set 'bos_token'"),
    ],
)
def test_options_the_template_cannot_honour(options, message):
    template = ChatTemplate(
        "{{ bos_token }}" + TEXT_ONLY + "{% if enable_thinking %}<think>{% endif %}", tokens={"bos_token": "<s>"}
    )
    chat = Chat(template, FORMAT)
    with pytest.raises(RequestError, match=message) as caught:
        chat.prompt(TURNS, options)
    assert caught.value.param == f"chat_template_kwargs.{next(iter(options))}"
    chat.close()
