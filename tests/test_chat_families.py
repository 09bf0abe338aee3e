"""Trained checkpoints are told of tools as transformers tells them, and call them."""

import json

import numpy as np
import pytest

import hf2q
from hf2q.convert import convert
from hf2q.plugins import Plugins
from hf2q.serve.chat import Chat, ChatQuery, ChatTemplate, Message, Tool, ToolCall
from hf2q.testing import require_fixture

WEATHER = Tool(
    name="get_weather",
    description="Get the current weather for a city.",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city name"},
            "unit": {"type": "string", "description": "Temperature unit", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city"],
    },
)
ADD = Tool(
    name="add",
    description="Add two integers.",
    parameters={
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "First number"},
            "b": {"type": "integer", "description": "Second number"},
        },
        "required": ["a", "b"],
    },
)
SYSTEM = Message(role="system", content="You are a helpful assistant.")
FORMATS = {"qwen3_5": "qwen", "gemma4": "gemma4", "deepseek_v4": "deepseek4", "qwen3_vl": "qwen3vl"}
"""Chat formats of fixtures."""

CALLS = (
    ToolCall(id="call_1", name="get_weather", arguments='{"city": "São\\nPaulo", "unit": "celsius"}'),
    ToolCall(id="call_2", name="add", arguments='{"a": 1, "b": [true, null]}'),
)
HISTORY = (
    Message(role="user", content="Hi"),
    Message(role="assistant", content="Yes.", tool_calls=CALLS),
    Message(role="tool", content="20", tool_call_id="call_1"),
    Message(role="tool", content="3", tool_call_id="call_2"),
    Message(role="assistant", content="Warm.", reasoning="so"),
    Message(role="system", content="Be brief."),
    Message(role="user", content="Thanks"),
)
SHOWN = {
    "qwen3_5": """<|im_start|>user
Hi<|im_end|>
<|im_start|>assistant
<think>

</think>

Yes.

<tool_call>
<function=get_weather>
<parameter=city>
São
Paulo
</parameter>
<parameter=unit>
celsius
</parameter>
</function>
</tool_call>
<tool_call>
<function=add>
<parameter=a>
1
</parameter>
<parameter=b>
[true, null]
</parameter>
</function>
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
20
</tool_response>
<tool_response>
3
</tool_response><|im_end|>
<|im_start|>assistant
<think>
so
</think>

Warm.<|im_end|>
<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
Thanks<|im_end|>
<|im_start|>assistant
<think>

</think>

""",
    "gemma4": "<bos><|turn>user\nHi<turn|>\n<|turn>model\nYes."
    '<|tool_call>call:get_weather{city:<|"|>São\nPaulo<|"|>,unit:<|"|>celsius<|"|>}<tool_call|>'
    "<|tool_call>call:add{a:1,b:[true,null]}<tool_call|>"
    '<|tool_response>response:get_weather{value:<|"|>20<|"|>}<tool_response|>'
    '<|tool_response>response:add{value:<|"|>3<|"|>}<tool_response|>'
    "<|channel>thought\nso\n<channel|>Warm.<turn|>\n"
    "<|turn>system\nBe brief.<turn|>\n<|turn>user\nThanks<turn|>\n<|turn>model\n",
    "deepseek_v4": "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>Yes.\n\n<｜DSML｜tool_calls>\n"
    '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">São\nPaulo</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="unit" string="true">celsius</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    '<｜DSML｜invoke name="add">\n<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="b" string="false">[true, null]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    "</｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜><tool_result>20</tool_result><tool_result>3</tool_result>"
    "<｜Assistant｜><think>so</think>Warm.<｜end▁of▁sentence｜>"
    "<｜User｜>Be brief.<｜User｜>Thanks<｜Assistant｜></think>",
    "qwen3_vl": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "São\\nPaulo", "unit": "celsius"}}\n</tool_call>\n<tool_call>\n'
    '{"name": "add", "arguments": {"a": 1, "b": [true, null]}}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\n<tool_response>\n20\n</tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\nWarm.<|im_end|>\n<|im_start|>system\nBe brief.<|im_end|>\n"
    "<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n",
}
"""What the templates of the fixtures make of `HISTORY`, by reading them."""

pytestmark = pytest.mark.fixtures


@pytest.fixture(scope="module", params=FORMATS)
def family(request):
    folder = require_fixture(request.param)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokens = {name: config[name] for name in ("bos_token", "eos_token") if isinstance(config.get(name), str)}
    template = ChatTemplate((folder / "chat_template.jinja").read_text(encoding="utf-8"), tokens=tokens)
    chat = Chat(template, Plugins.load().chat_format(FORMATS[request.param]))
    yield request.param, folder, chat
    chat.close()


def test_tools_are_shown_as_transformers_shows_them(family):
    import tokenizers

    _, folder, chat = family
    with np.load(folder / "oracle.npz") as oracle:
        ids = oracle["tool.ids"].tolist()
    expected = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).decode(ids, skip_special_tokens=False)
    asked = (SYSTEM, Message(role="user", content="What is the weather in Paris?"))
    assert chat.prepare(ChatQuery(messages=asked, tools=(WEATHER, ADD))).text == expected


def test_earlier_calls_and_their_results_are_shown(family):
    name, _, chat = family
    assert chat.prepare(ChatQuery(messages=HISTORY)).text == SHOWN[name]


def test_shown_calls_are_read_again(family):
    """What the template writes, the family's reader reads."""
    _, _, chat = family
    turns = HISTORY[:2]
    before = chat.prepare(ChatQuery(messages=turns[:1], tools=(WEATHER, ADD))).text
    text = chat.template.render(
        [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": "Yes.",
                "tool_calls": [
                    {"function": {"name": call.name, "arguments": json.loads(call.arguments)}} for call in CALLS
                ],
            },
        ],
        add_generation_prompt=False,
        tools=[],
    )
    assert before
    parser = chat.prepare(ChatQuery(messages=turns[:1], tools=(WEATHER, ADD))).parser()
    answer = text[text.index("Yes.") :]
    deltas = [parser.feed(answer), parser.finish()]
    calls = [call for delta in deltas for call in delta.calls]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        (call.name, json.loads(call.arguments)) for call in CALLS
    ]


# ------------------------------------------------------------------------------------------------- trained models


@pytest.fixture(scope="module", params=["qwen3_5", "gemma4"])
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("families") / "model.gguf"
    convert(require_fixture(request.param), "bf16", path)
    with hf2q.load(path, backend="reference") as loaded:
        yield loaded


QUESTIONS = (
    ("What is the weather in Paris?", ("get_weather", {"city": "Paris"})),
    ("What is the weather in Tokyo?", ("get_weather", {"city": "Tokyo"})),
    ("What is 12 plus 30?", ("add", {"a": 12, "b": 30})),
)


@pytest.mark.parametrize("choice", ["auto", "required", "named"])
@pytest.mark.parametrize(("question", "expected"), QUESTIONS)
def test_a_trained_model_calls_the_right_function(model, question, expected, choice):
    choice = expected[0] if choice == "named" else choice
    asked = [SYSTEM, Message(role="user", content=question)]
    events = list(model.chat(asked, tools=[WEATHER, ADD], tool_choice=choice, max_tokens=80))
    calls = [call for event in events for call in event.calls]
    text = "".join(event.text for event in events)
    arguments = json.loads("".join(call.arguments for call in calls))
    assert [(call.name, arguments) for call in calls if call.name] == [expected], text
    assert text == ""
    assert events[-1].finish_reason == "tool_calls"


def test_a_trained_model_answers_from_the_result_of_a_call(model):
    asked = [SYSTEM, Message(role="user", content="What is the weather in Paris?")]
    calls = [call for event in model.chat(asked, tools=[WEATHER, ADD], max_tokens=80) for call in event.calls]
    function = {"name": calls[0].name, "arguments": "".join(call.arguments for call in calls)}
    asked += [
        {"role": "assistant", "tool_calls": [{"id": calls[0].id, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": calls[0].id, "content": '{"temperature": 23, "sky": "sunny"}'},
    ]
    answer = "".join(event.text for event in model.chat(asked, tools=[WEATHER, ADD], max_tokens=40))
    assert "sunny" in answer
    assert "Paris" in answer
