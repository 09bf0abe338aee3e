"""Tools over the wire: what is asked, what the template is shown, and calls whole and as streams."""

import json

import openai
import pytest

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
ASKED = {"model": "scripted", "temperature": 0, "tools": [WEATHER, TIME]}


def call(name, **arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + "\n</tool_call>"


@pytest.fixture(scope="module")
def client(caller):
    with openai.OpenAI(base_url=f"{caller.base}/v1", api_key="none", max_retries=0, timeout=30) as found:
        yield found


def says(text):
    return [{"role": "user", "content": text}]


def folded(chunks):
    """What a client puts together from a stream, by the letter of the specification."""
    calls, content, reasons = {}, "", []
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasons.append(choice.finish_reason)
            for piece in choice.delta.tool_calls or ():
                if piece.id is not None:
                    assert piece.index not in calls
                    assert piece.index == len(calls)
                    assert (piece.type, piece.function.arguments) == ("function", "")
                    calls[piece.index] = {"id": piece.id, "name": piece.function.name, "arguments": ""}
                else:
                    assert piece.type is None
                    assert piece.function.name is None
                    calls[piece.index]["arguments"] += piece.function.arguments
    return content, list(calls.values()), [reason for reason in reasons if reason]


@pytest.mark.parametrize(
    ("text", "content", "called"),
    [
        (call("weather", place="Tōkyō 東京"), None, [("weather", {"place": "Tōkyō 東京"})]),
        ("Let me look.\n" + call("time"), "Let me look.", [("time", {})]),
        (call("weather", place="a") + "\n" + call("time"), None, [("weather", {"place": "a"}), ("time", {})]),
        ("no call", "no call", []),
    ],
)
def test_calls(client, text, content, called):
    answer = client.chat.completions.create(messages=says(text), **ASKED)
    message, choice = answer.choices[0].message, answer.choices[0]
    assert message.content == content
    assert choice.finish_reason == ("tool_calls" if called else "stop")
    found = message.tool_calls or []
    assert [(one.function.name, json.loads(one.function.arguments)) for one in found] == called
    assert len({one.id for one in found}) == len(called)
    assert all(one.type == "function" for one in found)

    chunks = list(client.chat.completions.create(messages=says(text), stream=True, **ASKED))
    streamed, calls, reasons = folded(chunks)
    assert (streamed or None, reasons) == (content, [choice.finish_reason])
    assert [(one["name"], json.loads(one["arguments"])) for one in calls] == called

    with client.chat.completions.stream(messages=says(text), **ASKED) as events:
        kinds = {event.type for event in events}
        final = events.get_final_completion().choices[0].message
    assert [(one.function.name, json.loads(one.function.arguments)) for one in final.tool_calls or []] == called
    assert ("tool_calls.function.arguments.done" in kinds) == bool(called)


def test_a_call_that_is_cut_off(client):
    limit = {"max_tokens": 30}
    answer = client.chat.completions.create(messages=says(call("weather", place="x" * 40)), **ASKED, **limit)
    assert answer.choices[0].finish_reason == "length"
    chunks = list(
        client.chat.completions.create(messages=says(call("weather", place="x" * 40)), stream=True, **ASKED, **limit)
    )
    assert folded(chunks)[2] == ["length"]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_stop_text_may_end_a_call(client, choice):
    text = "<think>x</think>" + call("weather", place="Tokyo")
    asked = {"messages": says(text), "tool_choice": choice, "max_tokens": 200, **ASKED}
    inside = client.chat.completions.create(stop="Tok", **asked).choices[0]
    assert inside.finish_reason == "stop"  # and not tool_calls: there is none that could be made
    behind = client.chat.completions.create(stop="</tool_call>", **asked).choices[0]
    (found,) = behind.message.tool_calls
    assert (behind.finish_reason, json.loads(found.function.arguments)) == ("tool_calls", {"place": "Tokyo"})
    for stop, whole in (("Tok", inside), ("</tool_call>", behind)):
        chunks = list(client.chat.completions.create(stop=stop, stream=True, **asked))
        assert folded(chunks)[2] == [whole.finish_reason]


def test_what_the_template_is_shown(client, caller):
    asked = {"messages": says("hi"), **ASKED}
    prompt = caller.json("POST", "/apply-template", {k: v for k, v in asked.items() if k != "temperature"})[2]["prompt"]
    assert '"name": "weather"' in prompt
    assert "The weather of a place." in prompt
    history = [
        *says("look"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": '{"zone": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "system", "content": "be brief"},
        *says("and"),
    ]
    answer = client.chat.completions.create(messages=history, **ASKED)
    assert answer.choices[0].message.content == "and"
    prompt = caller.json("POST", "/apply-template", {"messages": history})[2]["prompt"]
    assert '"arguments": {"zone": 1}' in prompt
    assert "tool\nnoon" in prompt
    assert "be brief" in prompt


def test_an_answer_with_calls_can_be_sent_back(client):
    first = client.chat.completions.create(messages=says(call("time")), **ASKED).choices[0].message
    for sent in (first, first.model_dump(), first.model_dump(exclude_none=True)):
        history = [
            *says("x"),
            sent,
            {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": [{"type": "text", "text": "noon"}]},
            *says("so"),
        ]
        assert client.chat.completions.create(messages=history, **ASKED).choices[0].message.content == "so"


def test_tool_choice_none(client):
    text = call("time")
    answer = client.chat.completions.create(messages=says(text), tool_choice="none", **ASKED).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.tool_calls is None


def test_n_and_logprobs_with_tools(client):
    text = "ab " + call("time")
    answer = client.chat.completions.create(messages=says(text), n=2, logprobs=True, top_logprobs=2, **ASKED)
    assert [choice.index for choice in answer.choices] == [0, 1]
    ids = {one.id for choice in answer.choices for one in choice.message.tool_calls}
    assert len(ids) == 2
    for choice in answer.choices:
        said = "".join(token.token for token in choice.logprobs.content)
        assert said.startswith(choice.message.content)
        assert "tool" not in said


def test_reasoning_then_a_call(client):
    text = "<think>\nI should look</think>\n\n" + call("time")
    asked = {"messages": says(text), "logprobs": True, **ASKED}
    message = client.chat.completions.create(**asked).choices[0].message
    assert message.reasoning_content == "I should look"
    assert message.tool_calls[0].function.name == "time"
    assert message.content is None
    chunks = list(client.chat.completions.create(stream=True, **asked))
    assert folded(chunks)[1][0]["name"] == "time"
    assert "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks) == "I should look"
