"""The official client against the server: chat, whole and as a stream."""

import openai
import pytest

CHAT = {"model": "scripted", "temperature": 0}


@pytest.fixture(scope="module")
def client(site):
    with openai.OpenAI(base_url=f"{site.base}/v1", api_key="none", max_retries=0, timeout=30) as found:
        yield found


def messages(text):
    return [{"role": "system", "content": "s"}, {"role": "user", "content": text}]


def stream_of(client, text, **more):
    with client.chat.completions.create(messages=messages(text), stream=True, **{**CHAT, **more}) as found:
        return list(found)


def test_unary(client):
    answer = client.chat.completions.create(messages=messages("Tōkyō 東京 🗼"), **CHAT)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "scripted")
    assert answer.created > 1_700_000_000
    assert answer.system_fingerprint.startswith("hf2q-")
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    message = choice.message
    assert (message.role, message.content, message.refusal) == ("assistant", "Tōkyō 東京 🗼", None)
    assert message.tool_calls is None
    assert not hasattr(message, "reasoning_content")
    usage = answer.usage
    # 256 byte tokens and the marks: one token a byte, and the end of the turn
    assert usage.completion_tokens == len("Tōkyō 東京 🗼".encode()) + 1
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_stream(client):
    chunks = stream_of(client, "Tōkyō 🗼")
    assert {(c.id, c.created, c.model, c.object) for c in chunks} == {
        (chunks[0].id, chunks[0].created, "scripted", "chat.completion.chunk")
    }
    assert all(len(c.choices) == 1 and c.usage is None and c.choices[0].index == 0 for c in chunks)
    deltas = [c.choices[0].delta for c in chunks]
    assert [d.role for d in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert deltas[0].content == ""
    assert [d.content for d in deltas[1:-1]] == list("Tōkyō 🗼")  # whole characters, as soon as they are complete
    assert deltas[-1].content is None
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]


def test_usage_in_a_stream_comes_last_and_only_when_asked_for(client):
    chunks = stream_of(client, "abc", stream_options={"include_usage": True})
    assert [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert "usage" in chunks[0].model_fields_set
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 4
    for options in (None, {}, {"include_usage": False}, {"include_usage": None, "include_obfuscation": False}):
        chunks = stream_of(client, "abc", stream_options=options)
        assert all(c.choices and "usage" not in c.model_fields_set for c in chunks)


def test_stream_helper(client):
    options = {"include_usage": True}
    with client.chat.completions.stream(messages=messages("Tōkyō"), stream_options=options, **CHAT) as events:
        kinds = [event.type for event in events]
        final = events.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert final.choices[0].message.content == "Tōkyō"
    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].finish_reason == "stop"
    assert final.usage.completion_tokens == 8


def test_reasoning(client):
    answer = client.chat.completions.create(messages=messages("<think>\nwhy\n</think>\n\nso"), **CHAT)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("why", "so")
    # the marker, "\nwhy\n" and the closing marker
    assert answer.usage.completion_tokens_details.reasoning_tokens == 7
    chunks = stream_of(client, "<think>\nwhy\n</think>\n\nso")
    deltas = [c.choices[0].delta for c in chunks]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "why"
    assert "".join(d.content or "" for d in deltas) == "so"
    assert not any(d.content and getattr(d, "reasoning_content", None) for d in deltas)


def test_reasoning_that_the_prompt_opens(client):
    # the script goes on after the "<think>\\n" of the prompt, so the answer itself has no opening marker
    asked = {
        "messages": messages("<think>\nwhy</think>so"),
        "extra_body": {"chat_template_kwargs": {"enable_thinking": True}},
        **CHAT,
    }
    answer = client.chat.completions.create(**asked)
    assert (answer.choices[0].message.reasoning_content, answer.choices[0].message.content) == ("why", "so")
    assert answer.usage.completion_tokens == len("why") + 1 + len("so") + 1
    cut = client.chat.completions.create(**asked, max_tokens=2)
    assert (cut.choices[0].message.reasoning_content, cut.choices[0].message.content) == ("wh", "")
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens_details.reasoning_tokens) == ("length", 2)


def test_answer_can_be_sent_back(client):
    first = client.chat.completions.create(messages=messages("<think>why</think>so"), **CHAT)
    history = [*messages("x"), first.choices[0].message, {"role": "user", "content": "and"}]
    assert client.chat.completions.create(messages=history, **CHAT).choices[0].message.content == "and"
    history[2] = first.choices[0].message.model_dump()
    assert client.chat.completions.create(messages=history, **CHAT).choices[0].message.content == "and"


def test_limits(client):
    for limit in ({"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 3, "max_completion_tokens": 3}):
        answer = client.chat.completions.create(messages=messages("abcdef"), **CHAT, **limit)
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("abc", "length")
        assert answer.usage.completion_tokens == 3
    stopped = client.chat.completions.create(messages=messages("abcdef"), stop=["zz", "de"], **CHAT)
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("abc", "stop")
    assert client.chat.completions.create(messages=messages("abc"), stop="c", **CHAT).choices[0].message.content == "ab"


def test_text_parts(client):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    answer = client.chat.completions.create(messages=[{"role": "user", "content": parts}], **CHAT)
    assert answer.choices[0].message.content == "a\nb"  # the template takes text only


def test_errors_are_the_clients_own_classes(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(messages=messages("x"), model="other")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert caught.value.request_id
    with pytest.raises(openai.BadRequestError, match="context of 4096") as caught:
        client.chat.completions.create(messages=messages("x" * 5000), **CHAT)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(messages=messages("x"), stream=True, tools=[TOOL], **CHAT)
    assert caught.value.param == "tools"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def test_models(client, running):
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "hf2q"
    with running(name="org/name:q4") as site, openai.OpenAI(base_url=f"{site.base}/v1", api_key="none") as other:
        assert other.models.retrieve("org/name:q4").id == "org/name:q4"
        with pytest.raises(openai.NotFoundError):
            other.models.retrieve("org/name")
