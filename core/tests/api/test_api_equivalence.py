"""A stream, put together, is the whole answer: for any tokens, cut anywhere, with stop texts, tools and reasoning.

Three put streams together: the unary response of the server, this file by the letter of the specification, and the
official client's own accumulator.
"""

import json

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tool_models import TOOLS, with_tools

from hf2q.testing.scripted import ASSISTANT, scripted_tokenizer

TOKENIZER = scripted_tokenizer()
MARKER = tuple(TOKENIZER.encode(ASSISTANT))
END = TOKENIZER.encode("<|im_end|>")[0]
TOOL = {
    "type": "function",
    "function": {"name": "time", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


class Plan:
    """What the model says next: token ids, whatever the prompt is."""

    said = ()

    def __call__(self, ids):
        for at in range(len(ids) - len(MARKER), -1, -1):
            if ids[at : at + len(MARKER)] == MARKER:
                at = len(ids) - at - len(MARKER)
                return self.said[at] if at < len(self.said) else END
        return END


@pytest.fixture(scope="module")
def planned(running):
    plan = Plan()
    with (
        running(script=plan, chat_template=TOOLS, change=with_tools) as site,
        openai.OpenAI(base_url=f"{site.base}/v1", api_key="none", max_retries=0, timeout=30) as client,
    ):
        yield plan, client


def of_bytes(data):
    """One token for each byte: a text that is cut everywhere, inside characters too."""
    return tuple(data if isinstance(data, bytes) else data.encode())


SPELLED = ["<think>", "</think>", "<tool_call>\n", "\n</tool_call>", '{"name": "time", "arguments": {}}']
WHOLE = [
    '<tool_call>\n{"name": "time", "arguments": {"a": 1}}\n</tool_call>',
    "<think>why</think>",
    "日本",
    " t",
    "\n\n",
]
TEXTS = st.sampled_from([*SPELLED, *WHOLE, "a", "b", "ab", "é", "🗼", "<", "</", "{", '"', "}", "stop"])
TOKENS = st.one_of(
    TEXTS.map(lambda text: tuple(TOKENIZER.encode(text))),
    TEXTS.map(of_bytes),
    st.sampled_from([b"\xe6\x97", b"\xa5", b"\xff", b"\xf0\x9f"]).map(of_bytes),
)
ANSWERS = st.lists(TOKENS, max_size=10).map(lambda parts: tuple(token for part in parts for token in part))


def folded(chunks):
    """Text, reasoning, calls, reason, log probabilities and usage of a stream."""
    content, reasoning, calls, logprobs, reasons, usage = "", "", {}, [], [], None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            delta = choice.delta
            content += delta.content or ""
            reasoning += getattr(delta, "reasoning_content", None) or ""
            if choice.logprobs is not None:
                assert delta.content
                logprobs += choice.logprobs.content
            reasons += [choice.finish_reason] if choice.finish_reason else []
            for piece in delta.tool_calls or ():
                if piece.id:
                    assert piece.index == len(calls)
                    calls[piece.index] = [piece.function.name, ""]
                calls[piece.index][1] += piece.function.arguments
    return content, reasoning, list(calls.values()), reasons, logprobs, usage


def tokens_of(usage):
    """Counts; not how many were in a cache, which the second of two equal requests finds there."""
    return usage.prompt_tokens, usage.completion_tokens, usage.completion_tokens_details.reasoning_tokens


def parts_of(message):
    """The same of a whole message."""
    calls = [[one.function.name, one.function.arguments] for one in message.tool_calls or ()]
    return message.content or "", getattr(message, "reasoning_content", ""), calls


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answer=ANSWERS,
    stop=st.lists(st.sampled_from(["ab", "b", "日", "</think>", "é", "stop", "}"]), max_size=2, unique=True),
    limit=st.integers(1, 40) | st.just(150),
    thinking=st.booleans(),
    tools=st.booleans(),
    logprobs=st.booleans(),
)
def test_a_stream_is_the_whole_answer(planned, answer, stop, limit, thinking, tools, logprobs):
    plan, client = planned
    plan.said = answer
    asked = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "x"}],
        "temperature": 0,
        "stop": stop or None,
        "max_tokens": limit,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": thinking}},
        **({"tools": [TOOL]} if tools else {}),
        **({"logprobs": True, "top_logprobs": 1} if logprobs else {}),
    }
    unary = client.chat.completions.create(**asked)
    choice = unary.choices[0]
    with client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as found:
        chunks = list(found)
    content, reasoning, calls, reasons, tokens, usage = folded(chunks)
    assert (content, reasoning, calls) == parts_of(choice.message)
    assert reasons == [choice.finish_reason]
    assert tokens_of(usage) == tokens_of(unary.usage)
    assert not any(text in content for text in stop)
    for name, arguments in calls:
        assert name == "time"
        if choice.finish_reason == "tool_calls":
            json.loads(arguments)
    if logprobs:
        assert tokens == choice.logprobs.content
        check_logprobs(content, tokens, certain=not tools)  # with tools, marks of other things are kept from the model
    else:
        assert (tokens, choice.logprobs) == ([], None)
    if choice.finish_reason == "length":
        return  # the helper raises for these
    with client.chat.completions.stream(**asked) as events:
        final = events.get_final_completion().choices[0]
    assert parts_of(final.message) == parts_of(choice.message)
    assert final.finish_reason == choice.finish_reason


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMS = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "time"}}},
]
DOCUMENTS = st.sampled_from(
    ['{"a": 1}', '{"a":1,"b":"é日"}', '{ "a" : 12 }', '{"b": 1}', "no", "", *WHOLE, *SPELLED[2:], '{"a": 1}, more']
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answer=st.lists(DOCUMENTS, min_size=1, max_size=3).map("".join).map(of_bytes),
    form=st.sampled_from(FORMS),
    limit=st.integers(1, 60),
    thought=st.sampled_from(["", "<think>why</think>"]),
)
def test_a_stream_that_is_held_to_a_form_is_the_whole_answer(planned, answer, form, limit, thought):
    plan, client = planned
    plan.said = tuple(TOKENIZER.encode(thought)) + answer
    asked = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "x"}],
        "temperature": 0,
        "max_tokens": limit,
        "logprobs": True,
        **form,
    }
    choice = client.chat.completions.create(**asked).choices[0]
    content, reasoning, calls, reasons, tokens, _ = folded(client.chat.completions.create(**asked, stream=True))
    assert (content, reasoning, calls) == parts_of(choice.message)
    assert reasons == [choice.finish_reason]
    assert tokens == choice.logprobs.content
    if choice.finish_reason == "length":
        return
    if "tools" in form:
        assert choice.finish_reason == "tool_calls"
        assert all(name == "time" and isinstance(json.loads(arguments), dict) for name, arguments in calls)
        assert calls
    else:
        found = json.loads(content)
        assert isinstance(found, dict)
        if form is FORMS[1]:
            assert isinstance(found["a"], int)
            assert set(found) <= {"a", "b"}
    with client.chat.completions.stream(**asked) as events:
        assert parts_of(events.get_final_completion().choices[0].message) == parts_of(choice.message)


def check_logprobs(content, tokens, *, certain):
    """The tokens' bytes are the content's, but for the ends of tokens that are cut off at its edges."""
    data = b"".join(bytes(token.bytes or ()) for token in tokens)
    if "\ufffd" not in content:
        assert content.encode() in data
        assert len(data) - len(content.encode()) <= 40
    assert not certain or all(token.logprob > -1e-6 for token in tokens)
