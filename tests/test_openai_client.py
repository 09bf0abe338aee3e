"""End to end: the trained checkpoint, converted, served by the ``hf2q`` program, asked by the official client."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import numpy as np
import openai
import pydantic
import pytest

from hf2q.convert import convert

SOURCE = Path(__file__).parent / "data" / "qwen3_5"
NAME = "qwen3_5-Q4_K_M"
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of Japan?"},
]
ANSWER = "The capital of Japan is Tokyo."
CHAT = {"model": NAME, "messages": MESSAGES, "temperature": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / f"{NAME}.gguf"
    convert(SOURCE, "q4_k_m", path)
    return path


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    """The address of a running ``hf2q serve``; stops it with a signal at the end, which must go well."""
    log = tmp_path_factory.mktemp("log") / "stderr.txt"
    words = [sys.executable, "-m", "hf2q", "serve", "--model", str(model), "--port", "0"]
    with log.open("w") as errors:
        process = subprocess.Popen(words, stderr=errors)
        try:
            yield started(process, log)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
    lines = log.read_text()
    assert "stopping" in lines
    assert re.search(
        r"38 prompt tokens \(\d+ cached, \d+ new\), \d+ generated, stop", lines
    )  # one line for each request
    assert "Traceback" not in lines


def started(process, log):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        found = re.search(r"http://[^\s,]+", log.read_text())
        if found and ready(found[0]):
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"not ready in time: {log.read_text()}")


def ready(base):
    try:
        with urllib.request.urlopen(f"{base}/readyz", timeout=10):
            return True
    except (urllib.error.HTTPError, OSError):
        return False


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


def test_answer(client):
    answer = client.chat.completions.create(**CHAT)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    with np.load(SOURCE / "oracle.npz") as oracle:
        assert answer.usage.prompt_tokens == len(oracle["chat.ids"])  # the template gives the recorded prompt
    assert answer.usage.completion_tokens == 13


def test_stream(client):
    with client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}) as found:
        chunks = list(found)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == ANSWER
    assert len(deltas) > 5  # it comes piece by piece
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == 13


def test_stream_helper(client):
    with client.chat.completions.stream(**CHAT) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.content == ANSWER


def test_limits_and_stops(client):
    cut = client.chat.completions.create(**CHAT, max_tokens=4).choices[0]
    assert (cut.message.content, cut.finish_reason) == ("The capital of J", "length")
    stopped = client.chat.completions.create(**CHAT, stop=["is Tok"]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("The capital of Japan ", "stop")


def test_seed_fixes_the_answer(client):
    asked = {**CHAT, "temperature": 1.5, "top_p": 1, "extra_body": {"top_k": 0}, "max_tokens": 20}

    def answer(seed):
        return client.chat.completions.create(**asked, seed=seed).choices[0].message.content

    assert answer(1) == answer(1)
    assert len({answer(seed) for seed in range(6)}) > 1


def test_thinking(client):
    more = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}, "max_tokens": 64}
    message = client.chat.completions.create(**CHAT, **more).choices[0].message
    assert message.reasoning_content
    assert "think>" not in message.content + message.reasoning_content


def test_several_clients_at_once(client):
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(client.chat.completions.create, **CHAT) for _ in range(6)]
    assert {found.result().choices[0].message.content for found in answers} == {ANSWER}


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"type": "integer", "maximum": 99}},
            "required": ["a", "b"],
        },
    },
}
PARIS = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": [WEATHER, ADD]}


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}], ids=str
)
def test_tools(client, choice):
    asked = {**CHAT, **PARIS, "tool_choice": choice, "parallel_tool_calls": False}
    found = client.chat.completions.create(**asked).choices[0]
    assert found.finish_reason == "tool_calls"
    (call,) = found.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    with client.chat.completions.stream(**asked) as events:
        (streamed,) = events.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments


def test_tools_may_be_kept_from_it(client):
    found = client.chat.completions.create(**CHAT, tools=[WEATHER], tool_choice="none").choices[0]
    assert found.message.tool_calls is None


class Place(pydantic.BaseModel):
    city: Annotated[str, pydantic.Field(max_length=12)]
    warm: bool


def test_structured_output(client):
    asked = {**CHAT, "temperature": 1, "max_tokens": 80, "response_format": Place}
    for seed in range(3):
        try:
            found = client.chat.completions.parse(**asked, seed=seed)
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(found.choices[0].message.parsed, Place)


def test_choices_and_logprobs(client):
    found = client.chat.completions.create(**CHAT, n=2, logprobs=True, top_logprobs=2)
    for choice in found.choices:
        assert choice.message.content == ANSWER
        assert b"".join(bytes(token.bytes) for token in choice.logprobs.content).decode() == ANSWER
        assert all(token.logprob == token.top_logprobs[0].logprob for token in choice.logprobs.content)  # greedy


def test_completions(client):
    asked = {"model": NAME, "prompt": "The capital of Japan is", "temperature": 0, "max_tokens": 8, "logprobs": 1}
    whole = client.completions.create(**asked, echo=True).choices[0]
    assert whole.text.startswith(asked["prompt"])
    assert "".join(whole.logprobs.tokens) == whole.text
    assert whole.logprobs.token_logprobs[0] is None
    streamed = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
    assert asked["prompt"] + "".join(streamed) == whole.text


def test_a_model_that_chats_gives_no_embeddings(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=NAME, input="x")
    assert caught.value.code == "model_not_supported"


def test_refusals(client):
    with pytest.raises(openai.NotFoundError, match=NAME):
        client.chat.completions.create(**{**CHAT, "model": "gpt-4"})
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**CHAT, tools=[{"type": "custom", "custom": {"name": "f"}}], stream=True)
    assert caught.value.param == "tools[0].type"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "word " * 5000}])
    assert caught.value.code == "context_length_exceeded"


def test_models(client):
    (row,) = client.models.list()
    assert (row.id, row.owned_by, client.models.retrieve(NAME).id) == (NAME, "hf2q", NAME)


def test_generate_command(model):
    words = ["generate", "--model", str(model), "--chat", "--system", MESSAGES[0]["content"]]
    program = [sys.executable, "-m", "hf2q", *words, "--prompt", MESSAGES[1]["content"]]
    found = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout == f"{ANSWER}\n"
    assert re.fullmatch(r"prompt: 38 tokens, .*; generated: 13 tokens, .*; ended by: stop\n", found.stderr)
    found = subprocess.run([*program, "--json"], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(found.stdout)["text"] == ANSWER
