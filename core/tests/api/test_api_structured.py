"""Answers that are held to a form, over the wire: the client's own helpers, and what is refused."""

import json

import openai
import pydantic
import pytest

CHAT = "/v1/chat/completions"
ASKED = {"model": "scripted", "temperature": 0}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}},
            "required": ["place"],
            "additionalProperties": False,
        },
    },
}


class Person(pydantic.BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def client(caller):
    with openai.OpenAI(base_url=f"{caller.base}/v1", api_key="none", max_retries=0, timeout=30) as found:
        yield found


def says(text):
    return [{"role": "user", "content": text}]


def test_parse(client):
    said = '{"name": "Ada", "age": 36}'
    for text in (said, f"<think>hm</think>{said}"):
        message = client.chat.completions.parse(messages=says(text), response_format=Person, **ASKED).choices[0].message
        assert message.parsed == Person(name="Ada", age=36)
    with client.chat.completions.stream(messages=says(said), response_format=Person, **ASKED) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.parsed == Person(name="Ada", age=36)


def test_parse_of_a_call(client):
    text = '<tool_call>\n{"name": "weather", "arguments": {"place": "Tokyo"}}\n</tool_call>'
    tool = json.loads(json.dumps(TOOL))
    answer = client.chat.completions.parse(messages=says(text), tools=[tool], tool_choice="required", **ASKED)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.parsed_arguments == {"place": "Tokyo"}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_json_object(client):
    form = {"type": "json_object"}
    message = client.chat.completions.create(messages=says('{"a": [1, 2]}'), response_format=form, **ASKED).choices[0]
    assert json.loads(message.message.content) == {"a": [1, 2]}


def test_grammar(client):
    more = {"grammar": 'start: ("a" | "b")+ "c"'}
    answer = client.chat.completions.create(messages=says("abac"), extra_body=more, **ASKED).choices[0]
    assert (answer.message.content, answer.finish_reason) == ("abac", "stop")


def test_the_same_form_for_all_choices(client):
    text = '{"name": "Ada", "age": 36}'
    answer = client.chat.completions.parse(messages=says(text), response_format=Person, n=3, logprobs=True, **ASKED)
    assert [choice.message.parsed.age for choice in answer.choices] == [36] * 3
    assert all("".join(t.token for t in choice.logprobs.content) == text for choice in answer.choices)


def schema(found):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": found}}}


BAD = [
    (schema({"type": "object", "properties": {"a": {"not": {}}}}), "response_format.json_schema.schema"),
    (schema({"$ref": "https://example.com/x.json"}), "response_format.json_schema.schema"),
    (schema({"type": "thing"}), "response_format.json_schema.schema"),
    ({"grammar": "start: nothing"}, "grammar"),
    ({"grammar": "((("}, "grammar"),
    ({"grammar": 'start: "a"', "response_format": {"type": "json_object"}}, "grammar"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("stream", [False, True])
def test_forms_that_cannot_be_enforced(caller, fields, param, stream):
    before = caller.steps
    status, headers, body = caller.json("POST", CHAT, caller.user("x", stream=stream, **fields))
    assert (status, headers["content-type"]) == (400, "application/json")
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"].startswith(param), body
    assert caller.steps == before
