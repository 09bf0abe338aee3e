"""`Model.chat`: messages in, reasoning and answer apart; wrong messages refused at once."""

import pytest

from hf2q.errors import RequestError, UsageError
from hf2q.serve.chat import Message
from hf2q.serve.sampling import SamplingParams
from hf2q.testing.scripted import scripted_model


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
        ([{"role": "user", "content": "x", "name": "Al"}], "message 0 has name; expected only content, images"),
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
