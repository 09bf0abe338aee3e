"""``/v1/responses`` through the official client: unary, streams, tools, reasoning, stored responses, refusals."""

import json

import openai
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.serve.api.answer import Piece
from hf2q.serve.api.chat_messages import ImageRef
from hf2q.serve.api.errors import HttpRefusal
from hf2q.serve.api.responses_items import OPAQUE, Item, Turns, opaque
from hf2q.serve.api.responses_output import Output
from hf2q.serve.api.responses_schema import Response
from hf2q.serve.api.responses_store import Kept, ResponseStore
from hf2q.serve.chat import Message, ToolCall
from hf2q.serve.chat.deltas import CallDelta

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
GREEDY = {"model": "scripted", "temperature": 0}


def client_of(site):
    return openai.OpenAI(base_url=f"{site.base}/v1", api_key="none", max_retries=0, timeout=30)


@pytest.fixture(scope="module")
def client(site):
    with client_of(site) as found:
        yield found


@pytest.fixture(scope="module")
def tools_client(caller):
    with client_of(caller) as found:
        yield found


def test_unary(client):
    answer = client.responses.create(input="Tōkyō 🗼", instructions="be brief", metadata={"a": "b"}, **GREEDY)
    assert answer.id.startswith("resp_")
    assert (answer.object, answer.status, answer.error, answer.incomplete_details) == (
        "response",
        "completed",
        None,
        None,
    )
    assert (answer.instructions, answer.metadata, answer.temperature) == ("be brief", {"a": "b"}, 0)
    (item,) = answer.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert answer.output_text == "Tōkyō 🗼"
    assert answer.usage.output_tokens == len("Tōkyō 🗼".encode()) + 1
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.output_tokens_details.reasoning_tokens == 0


def test_a_stream_tells_of_everything_in_order_and_ends_as_the_unary_response(client):
    with client.responses.create(input="ab", stream=True, **GREEDY) as events:
        seen = list(events)
    assert [event.type for event in seen] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    done = seen[-1].response
    whole = client.responses.create(input="ab", **GREEDY)
    assert done.output_text == whole.output_text == "ab"
    assert (done.usage.input_tokens, done.usage.output_tokens) == (whole.usage.input_tokens, whole.usage.output_tokens)
    assert client.responses.retrieve(done.id).output_text == "ab"


def test_the_helper_of_streams(client):
    with client.responses.stream(input="Hello there", **GREEDY) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(texts) == final.output_text == "Hello there"


def test_reasoning_is_an_item_of_its_own(client):
    asked = {"input": "<think>Rome?</think>Yes.", "extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    answer = client.responses.create(include=["reasoning.encrypted_content"], **asked, **GREEDY)
    thought, said = answer.output
    assert (thought.type, thought.content[0].text, thought.summary) == ("reasoning", "Rome?", [])
    assert thought.encrypted_content == opaque("Rome?")
    assert said.content[0].text == "Yes."
    assert answer.usage.output_tokens_details.reasoning_tokens > 0
    with client.responses.create(stream=True, **asked, **GREEDY) as events:
        kinds = [event.type for event in events]
    assert "response.reasoning_text.delta" in kinds
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    again = [
        {"role": "user", "content": "x"},
        *[item.model_dump() for item in answer.output],
        {"role": "user", "content": "y"},
    ]
    kept = [{name: value for name, value in item.items() if value is not None} for item in again]
    assert client.responses.create(input=kept, **GREEDY).output_text == "y"


def test_a_limit_makes_it_incomplete(client):
    answer = client.responses.create(input="abcdef", max_output_tokens=3, **GREEDY)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.output_text, answer.output[0].status) == ("abc", "incomplete")
    with client.responses.create(input="abcdef", max_output_tokens=3, stream=True, **GREEDY) as events:
        last = list(events)[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")


def test_log_probabilities(client):
    answer = client.responses.create(input="ab", include=["message.output_text.logprobs"], top_logprobs=2, **GREEDY)
    found = answer.output[0].content[0].logprobs
    assert [one.token for one in found] == ["a", "b"]
    assert all(len(one.top_logprobs) == 2 for one in found)
    assert client.responses.create(input="ab", **GREEDY).output[0].content[0].logprobs == []


def test_calls_of_functions(tools_client):
    answer = tools_client.responses.create(input=CALL, tools=[WEATHER], **GREEDY)
    (item,) = answer.output
    assert (item.type, item.name, json.loads(item.arguments)) == ("function_call", "weather", {"city": "Rome"})
    assert item.call_id != item.id
    with tools_client.responses.stream(input=CALL, tools=[WEATHER], tool_choice="required", **GREEDY) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[2] == "response.output_item.added"
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    assert json.loads(final.output[0].arguments) == {"city": "Rome"}
    given = [
        {"role": "user", "content": "weather?"},
        item.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"},
        {"role": "user", "content": "thanks"},
    ]
    assert tools_client.responses.create(input=given, tools=[WEATHER], **GREEDY).output_text == "thanks"


class City(pydantic.BaseModel):
    name: str
    people: int


def test_the_helper_for_structured_output(client):
    text = '{"name":"Rome","people":3}'
    answer = client.responses.parse(input=text, text_format=City, **GREEDY)
    assert answer.output_parsed == City(name="Rome", people=3)


def test_a_response_is_continued(running):
    with running(
        reply=lambda conversation: conversation.replace("<|im_start|>", "[").replace("<|im_end|>", "]")
    ) as site:
        client = client_of(site)
        first = client.responses.create(input="one", instructions="never carried over", **GREEDY)
        second = client.responses.create(input="two", previous_response_id=first.id, **GREEDY)
        assert "never carried over" in first.output_text
        assert "never carried over" not in second.output_text.replace(first.output_text, "")
        assert second.output_text.startswith("[user\none]\n[assistant\n")
        assert second.output_text.endswith("[user\ntwo]\n")
        assert second.previous_response_id == first.id
        items = client.responses.input_items.list(second.id)
        assert [item.content for item in items.data] == ["two"]
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError) as caught:
            client.responses.create(input="x", previous_response_id=first.id, **GREEDY)
        assert (caught.value.param, caught.value.code) == ("previous_response_id", "response_not_found")


def test_what_is_not_stored_cannot_be_read(client):
    answer = client.responses.create(input="a", store=False, **GREEDY)
    assert answer.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


REFUSED = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "web_search_call", "id": "1"}]}, "input[0].type"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": "x", "call_id": "c"}]}, "input[0].call_id"),
    ({"input": [{"type": "reasoning", "encrypted_content": "gAAAA"}]}, "input[0].encrypted_content"),
    ({"input": [{"type": "reasoning", "encrypted_content": OPAQUE + "!"}]}, "input[0].encrypted_content"),
    ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"),
    ({"truncation": "auto"}, "truncation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"max_tool_calls": 3}, "max_tool_calls"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "f", "colour": 1}]}, "tools[0].colour"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "name": "f", "strict": "yes"}]}, "tools[0].strict"),
    ({"tools": [{"type": "function", "name": "f", "parameters": []}]}, "tools[0].parameters"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "text", "name": "n"}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_object", "strict": True}}}, "text.format.strict"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "colour"}}}}, "text.format.schema"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"previous_response_id": "resp_0"}, "previous_response_id"),
    ({"messages": []}, "messages"),
    ({"n": 2}, "n"),
    ({"temperature": 3}, "temperature"),
]


@pytest.mark.parametrize(("change", "param"), REFUSED, ids=[json.dumps(change)[:60] for change, _ in REFUSED])
def test_what_is_refused(site, caller, change, param):
    where = caller if "tools" in change or "tool_choice" in change else site
    before = where.steps
    status, _, body = where.json("POST", "/v1/responses", {"model": "scripted", "input": "x", **change})
    assert status == (404 if param == "previous_response_id" else 400), body
    assert body["error"]["param"] == param
    assert body["error"]["type"] == "invalid_request_error"
    assert where.steps == before


def test_a_failure_in_the_middle_of_a_stream_is_told(running):
    def reply(conversation):
        raise RuntimeError("broken")

    with running(reply=reply) as site:
        client = client_of(site)
        with client.responses.create(input="x", stream=True, **GREEDY) as events:
            last = list(events)[-1]
        assert (last.type, last.response.status) == ("response.failed", "failed")
        assert last.response.error.message


# ---------------------------------------------------------------------------------------------------------- the parts


def pieces():
    """Answers cut anywhere: reasoning, then content and calls."""
    text = st.lists(st.text(min_size=1, max_size=5), max_size=4)

    @st.composite
    def drawn(draw):
        found = [Piece(reasoning=part) for part in draw(text)] + [Piece(content=part) for part in draw(text)]
        for index in range(draw(st.integers(0, 3))):
            found.append(Piece(calls=(CallDelta(index=index, id=f"call_{index}", name="f"),)))
            found += [Piece(calls=(CallDelta(index=index, arguments=part),)) for part in draw(text)]
        return found

    return drawn()


@settings(max_examples=60, deadline=None)
@given(pieces())
def test_events_fold_to_the_items(found):
    output = Output()
    events = [event for piece in found for event in output.take(piece)] + output.end("completed")
    folded = {}
    for kind, fields in events:
        place = fields["output_index"]
        if kind == "response.output_item.added":
            assert place == len(folded), "items come one after the other"
            folded[place] = ""
        elif kind.endswith(".delta"):
            folded[place] += fields["delta"]
        elif kind in ("response.output_text.done", "response.reasoning_text.done"):
            assert fields["text"] == folded[place]
        elif kind == "response.function_call_arguments.done":
            assert fields["arguments"] == folded[place]
    assert len(output.items) == len(folded) >= 1
    for place, item in enumerate(output.items):
        assert (item.arguments if hasattr(item, "arguments") else item.content[0].text) == folded[place]


def test_a_turn_of_the_assistant_is_one_message():
    turns = Turns()
    for item in (
        Item(role="user", content="q"),
        Item(type="reasoning", encrypted_content=opaque("hmm")),
        Item(role="assistant", content="a"),
        Item(type="function_call", call_id="1", name="f", arguments='{"x":1}'),
        Item(type="function_call", call_id="2", name="g"),
        Item(type="function_call_output", call_id="1", output="r"),
        Item(role="assistant", content="b"),
        Item(role="assistant", content="c"),
    ):
        turns.take(item, "input[0]")
    turns.end()
    calls = (ToolCall(id="1", name="f", arguments='{"x":1}'), ToolCall(id="2", name="g", arguments="{}"))
    assert turns.messages == [
        Message(role="user", content="q"),
        Message(role="assistant", content="a", reasoning="hmm", tool_calls=calls),
        Message(role="tool", content="r", tool_call_id="1"),
        Message(role="assistant", content="b"),
        Message(role="assistant", content="c"),
    ]


def kept(id, size=0):
    response = Response(id=id, created_at=0, model="m", status="completed", temperature=1.0, top_p=1.0)
    return Kept(response=response, items=(), images=(ImageRef(url="x" * size, param="p"),))


def test_the_store_is_bounded_and_tenants_do_not_meet():
    store = ResponseStore(most=2, most_bytes=5000)
    for id in ("a", "b"):
        store.put("one", kept(id))
    store.get("one", "a")
    store.put("one", kept("c"))  # b is the longest unused
    for tenant, id in (("one", "b"), ("two", "a")):
        with pytest.raises(HttpRefusal, match="no stored response"):
            store.get(tenant, id)
    assert store.get("one", "a").response.id == "a"
    store.put("one", kept("d", size=4500))
    with pytest.raises(HttpRefusal):
        store.get("one", "a")
    store.put("one", kept("e", size=6000))  # larger than everything together may be
    with pytest.raises(HttpRefusal):
        store.get("one", "e")
