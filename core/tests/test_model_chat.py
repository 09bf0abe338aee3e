"""`Model.chat`: messages in, reasoning and answer apart; wrong messages refused at once."""

import pytest

from hf2q.errors import RequestError, UsageError
from hf2q.serve.chat import Message, Tool
from hf2q.serve.sampling import SamplingParams
from hf2q.testing.scripted import scripted_model
from hf2q.types import ChatFormat


def answer(events):
    events = list(events)
    return "".join(e.reasoning for e in events), "".join(e.text for e in events), events[-1]


def test_a_dialogue_goes_through_the_template_and_comes_back_divided():
    model = scripted_model(lambda said: f"<think>hm</think>{said.count('be kind')} {'hello' in said}")
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    reasoning, text, last = answer(model.chat(messages))
    assert (reasoning, text) == ("hm", "1 True")
    assert (last.finish_reason, last.token) == ("stop", None)
    assert last.usage.completion_tokens > 5
    again = answer(model.chat([Message(role=m["role"], content=m["content"]) for m in messages]))
    assert again[:2] == (reasoning, text)


def test_settings_are_those_of_generate():
    model = scripted_model("abcdef")
    events = list(model.chat([{"role": "user", "content": "x"}], max_tokens=3, logprobs=1))
    assert "".join(event.text for event in events) == "abc"
    assert events[-1].finish_reason == "length"
    assert all(event.logprobs.top[0][0] == event.token for event in events[:-1])
    assert answer(model.chat([{"role": "user", "content": "x"}], stop="d"))[1] == "abc"
    biased = model.chat([{"role": "user", "content": "x"}], sampling=SamplingParams(logit_bias={65: 100}), max_tokens=2)
    assert answer(biased)[1] == "AA"


def test_settings_that_do_not_exist_are_refused():
    model = scripted_model("abcdef")
    with pytest.raises(TypeError, match="unexpected keyword arguments: max_token, temperatur"):
        model.chat([{"role": "user", "content": "x"}], max_token=3, temperatur=1)
    with pytest.raises(RequestError, match="template_options is 'x', expected a mapping"):
        model.chat([{"role": "user", "content": "x"}], template_options="x")
    for ask in (
        lambda: model.chat([{"role": "user", "content": "x"}], images="a.png"),
        lambda: model.generate("x", images="a.png"),
    ):
        with pytest.raises(RequestError, match="images is a str, expected a list"):
            ask()


def test_the_template_is_opened_once_and_closed_with_the_model():
    model = scripted_model("a")
    with model:
        list(model.chat([{"role": "user", "content": "x"}]))
        chat = model._chat
        list(model.chat([{"role": "user", "content": "y"}]))
        assert model._chat is chat is not None
    assert model._chat is None
    assert answer(model.chat([{"role": "user", "content": "z"}]))[1] == "a"  # the model runs on
    model.close()


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "expected a list of at least one message"),
        ("hello", "expected a list of at least one message"),
        (["hello"], "message 0 is 'hello', expected a mapping"),
        ([{"content": "x"}], "the role of message 0 is None"),
        ([{"role": "user", "content": "x"}, {"role": "user"}], "the content of message 1 is None"),
        ([{"role": "user", "content": 5}], "the content of message 0 is 5"),
        ([{"role": "user", "content": ["a", 5]}], "the content of message 0"),
        ([{"role": "user", "content": "x", "age": 3}], "message 0 has age; expected only content, images, name"),
        ([{"role": "user", "content": "x", "name": 3}], "the name of message 0 is 3"),
        ([{"role": "assistant", "tool_calls": 3}], "tool_calls of message 0 is 3"),
        ([{"role": "assistant", "tool_calls": [{"id": "a", "name": "f"}]}], "a call of message 0 is"),
        ([{"role": "assistant", "tool_calls": [{"id": "a", "name": "f", "arguments": {}}]}], "each a text"),
        ([{"role": "user", "content": "x", "images": -1}], "images of message 0 is -1"),
        ([{"role": "user", "content": "x", "reasoning": 1}], "the reasoning of message 0 is 1"),
    ],
)
def test_wrong_messages_are_refused_at_once(messages, told):
    with pytest.raises(RequestError) as caught:
        scripted_model("a").chat(messages)
    assert told in caught.value.message
    assert caught.value.param == "messages"


def test_what_the_model_lacks_is_said():
    with pytest.raises(RequestError, match="no chat template"):
        scripted_model("a", chat_template=None).chat([{"role": "user", "content": "x"}])
    with pytest.raises(RequestError, match="cannot set 'enable_thinking'"):
        scripted_model("a").chat([{"role": "user", "content": "x"}], template_options={"enable_thinking": True})
    with pytest.raises(UsageError, match="without its projector"):
        scripted_model("a", chat_template="{{ messages }}").chat(
            [{"role": "user", "content": "x"}], images=["nowhere.png"]
        )


# ------------------------------------------------------------------------------------------------------------- tools

TOOLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WEATHER = {
    "name": "weather",
    "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ASKED = [{"role": "user", "content": "Weather?"}]


def calling(reply):
    model = scripted_model(reply, chat_template=TOOLS)
    model.chat_format = ChatFormat(
        name="calling",
        reasoning=("<think>", "</think>"),
        end_of_turn=("<|im_end|>",),
        tools="hf2q_arch_qwen3vl.calls:HermesCalls",
    )
    return model


def calls_of(events):
    """Calls as [name, arguments], by their index."""
    found = {}
    for event in events:
        for call in event.calls:
            if call.name is not None:
                assert call.id.startswith("call_")
                found[call.index] = [call.name, ""]
            found[call.index][1] += call.arguments
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize("tool", [WEATHER, {"type": "function", "function": WEATHER}, Tool(**WEATHER)])
def test_a_call_comes_apart_from_the_text(tool):
    events = list(calling(f"<think>hm</think>Let me see.\n{CALL}").chat(ASKED, tools=[tool]))
    assert answer(events)[:2] == ("hm", "Let me see.")
    assert calls_of(events) == [["weather", '{"city": "Paris"}']]
    assert events[-1].finish_reason == "tool_calls"
    assert sum(bool(event.calls) for event in events) > 10, "it comes as it is written"


def test_the_result_of_a_call_goes_into_the_dialogue():
    shown = ('[weather {"city": "Paris"}]', "tool\nsunny")
    model = calling(lambda said: " ".join(str(text in said) for text in shown))
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    turns = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    events = list(model.chat(turns, tools=[WEATHER]))
    assert answer(events)[1] == "True True"
    assert events[-1].finish_reason == "stop"


def test_a_call_cut_off_by_its_length():
    events = list(calling(CALL).chat(ASKED, tools=[WEATHER], tool_choice="required", max_tokens=45))
    assert events[-1].finish_reason == "length"


def test_the_choice_of_tools():
    assert answer(calling(CALL).chat(ASKED, tools=[WEATHER], tool_choice="none"))[1] == CALL
    named = list(calling(CALL).chat(ASKED, tools=[WEATHER, {"name": "other"}], tool_choice="weather"))
    assert calls_of(named) == [["weather", '{"city": "Paris"}']]
    two = f"{CALL}\n{CALL}"
    assert len(calls_of(calling(two).chat(ASKED, tools=[WEATHER]))) == 2
    assert len(calls_of(calling(two).chat(ASKED, tools=[WEATHER], parallel_tool_calls=False))) == 1


@pytest.mark.parametrize(
    ("given", "told", "param"),
    [
        ({"tools": WEATHER}, "expected a list of tools", "tools"),
        ({"tools": ["weather"]}, "tool 0 is 'weather'", "tools"),
        ({"tools": [{"name": 3}]}, "the name of tool 0 is 3", "tools"),
        ({"tools": [{**WEATHER, "age": 3}]}, "tool 0 has age", "tools"),
        ({"tools": [{"type": "custom", "function": WEATHER}]}, "expected type 'function'", "tools"),
        ({"tools": [{"name": "f", "parameters": []}, {"name": "f", "parameters": [1]}]}, "tool 1", "tools"),
        ({"tools": [{"name": "a b"}]}, "expected 1 to 64", "tools[0].function.name"),
        ({"tool_choice": "required"}, "there are no tools", "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "other"}, "none of the tools", "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": 3}, "expected none, auto, required", "tool_choice"),
    ],
)
def test_wrong_tools_are_refused_at_once(given, told, param):
    with pytest.raises(RequestError) as caught:
        calling("a").chat(ASKED, **given)
    assert told in caught.value.message
    assert caught.value.param == param
