"""Trained models held to a form: JSON that validates at temperature 1, required calls, reasoning that is cut short."""

import json

import pytest
from jsonschema import Draft202012Validator

import hf2q
from hf2q.convert import convert
from hf2q.serve.chat import ChatQuery, Message, ResponseFormat, Tool, ToolChoice
from hf2q.serve.engine import Engine
from hf2q.serve.events import GenerateRequest
from hf2q.serve.sampling import SamplingParams
from hf2q.testing import require_fixture

pytestmark = pytest.mark.fixtures

ASKED = (Message(role="user", content="What is the weather in Paris?"),)
SCHEMAS = (
    {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "warm": {"type": "boolean"}},
        "required": ["city", "warm"],
        "additionalProperties": False,
    },
    {"enum": ["sunny", "rainy", {"other": None}]},
    {"type": "array", "items": {"type": "integer", "minimum": -40, "maximum": 50}, "minItems": 1, "maxItems": 3},
)
WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city"],
    },
)
ADD = Tool(
    name="add",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"type": "integer", "maximum": 99}},
        "required": ["a", "b"],
    },
)


@pytest.fixture(scope="module", params=["qwen3_5", "gemma4"])
def engine(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("grammar") / "model.gguf"
    convert(require_fixture(request.param), "bf16", path)
    with hf2q.load(path, backend="reference") as model, Engine(model) as engine:
        yield engine


def answer(engine, query, *, seed=0, temperature=1.0, max_tokens=80):
    """Reasoning, content, calls and why it ended."""
    from hf2q.serve.chat import open_chat

    chat = open_chat(engine.model)
    asked = chat.prepare(query)
    request = GenerateRequest(
        prompt_ids=tuple(engine.model.tokenizer.encode(asked.text, add_bos=False)),
        sampling=SamplingParams(temperature=temperature, seed=seed),
        max_tokens=max_tokens,
        constraint=asked.constraint(),
        skip_special=asked.skip_special,
    )
    parser, reasoning, content, calls = asked.parser(), "", "", {}
    events = list(engine.submit(request))
    deltas = [parser.feed(event.text) for event in events]
    reason = events[-1].finish_reason
    for delta in (*deltas, parser.finish(cut=reason == "length")):
        reasoning, content = reasoning + delta.reasoning, content + delta.content
        for call in delta.calls:
            name, arguments = calls.get(call.index, (call.name, ""))
            calls[call.index] = (name, arguments + call.arguments)
    chat.close()
    return reasoning, content, list(calls.values()), reason


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_json_validates_at_temperature_1(engine, schema):
    query = ChatQuery(messages=ASKED, format=ResponseFormat(kind="json_schema", schema=schema))
    ended = 0
    for seed in range(2):
        _, content, _, reason = answer(engine, query, seed=seed)
        if reason == "stop":
            Draft202012Validator(schema).validate(json.loads(content))
            ended += 1
    assert ended


@pytest.mark.parametrize("choice", [ToolChoice(mode="required"), ToolChoice(mode="required", name="add")])
def test_required_calls_are_valid(engine, choice):
    query = ChatQuery(messages=ASKED, tools=(WEATHER, ADD), choice=choice, parallel=False)
    for seed in range(2):
        _, content, calls, reason = answer(engine, query, seed=seed)
        if reason == "length":
            continue
        assert content == ""
        ((name, arguments),) = calls
        assert choice.name in (None, name)
        parameters = {"get_weather": WEATHER, "add": ADD}[name].parameters
        Draft202012Validator(parameters).validate(json.loads(arguments))


def test_the_trained_call_passes_the_grammar_unchanged(engine):
    """Greedy, the model calls by itself; held to the grammar it says the same."""
    query = ChatQuery(messages=ASKED, tools=(WEATHER, ADD))
    _, _, calls, _ = answer(engine, query, temperature=0.0)
    assert [(name, json.loads(arguments)["city"]) for name, arguments in calls] == [("get_weather", "Paris")]


def test_reasoning_is_cut_at_its_budget(engine):
    options = {"enable_thinking": True}
    for budget in (0, 5):
        query = ChatQuery(
            messages=ASKED,
            options=options,
            thinking_budget=budget,
            format=ResponseFormat(kind="json_schema", schema=SCHEMAS[0]),
        )
        reasoning, content, _, reason = answer(engine, query, temperature=1.5)
        assert len(engine.model.tokenizer.encode(reasoning, add_bos=False)) <= budget + 3
        if reason == "stop":
            Draft202012Validator(SCHEMAS[0]).validate(json.loads(content))
