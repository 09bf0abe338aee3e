"""The engine over trained models: several at once and from kept states the answers are those of each alone.

Qwen 3.5 has recurrent layers, Gemma 4 sliding windows, DeepSeek V4 caches of its own: each goes back in its own way.
"""

from pathlib import Path

import pytest

import hf2q
from hf2q.convert import convert
from hf2q.serve.engine import Engine
from hf2q.serve.events import GenerateRequest
from hf2q.serve.sampling import SamplingParams
from hf2q.testing import require_fixture

SYSTEM = "You are a careful clerk of the parish who answers briefly. " * 12
ASKED = ["What is the capital of Japan?", "Who was the King of Israel?", "Say something of Mr. Darcy.", "Count to ten."]
MARKS = {
    "qwen3_5": ("<|im_start|>{role}\n{text}<|im_end|>\n", "<|im_start|>assistant\n"),
    "gemma4": ("<|turn>{role}\n{text}<turn|>\n", "<|turn>model\n"),
}


@pytest.fixture(scope="module", params=["qwen3_5", "gemma4", "deepseek_v4"])
def model(request, tmp_path_factory):
    source = Path(__file__).parent / "data" / request.param
    if not source.is_dir():
        source = require_fixture(request.param)
    path = tmp_path_factory.mktemp("engine") / "m.gguf"
    convert(source, "q8_0", path, sidecars=False, receipt=False)
    with hf2q.load(path, backend="cpu", exact=True, ctx=2048) as loaded:
        loaded.marks = MARKS.get(request.param, ("[{role}] {text}\n", "[assistant] "))
        yield loaded


def prompt(model, *turns):
    """Of a dialogue: user, assistant, user …, as token ids."""
    turn, opening = model.marks
    roles = ("system", *("user", "assistant") * len(turns))
    text = "".join(turn.format(role=role, text=said) for role, said in zip(roles, (SYSTEM, *turns), strict=False))
    return tuple(model.tokenizer.encode(text + opening))


def asked(ids, seed, **more):
    return GenerateRequest(
        prompt_ids=ids,
        max_tokens=24,
        sampling=SamplingParams(temperature=0.8 * (seed % 2), seed=seed),
        scope="one",
        **more,
    )


def answers(engine, requests):
    """Tokens and cached tokens of each, all at once."""
    found = []
    for handle in engine.submit_many(requests):
        events = list(handle)
        found.append(([event.token for event in events[:-1]], events[-1].usage.cached_tokens))
    return found


def dialogue(model, engine, together):
    """Two turns of several dialogues, which begin alike."""
    tokens, cached = [], []
    turns = [[question] for question in ASKED]
    for _ in range(2):
        requests = [asked(prompt(model, *said), seed) for seed, said in enumerate(turns)]
        groups = [requests] if together else [[one] for one in requests]
        found = [one for group in groups for one in answers(engine, group)]
        for said, (answer, _) in zip(turns, found, strict=True):
            said += [model.tokenizer.decode(answer), "And then?"]
        tokens += [answer for answer, _ in found]
        cached.append([count for _, count in found])
    return tokens, cached


def test_dialogues_at_once_with_reuse_are_those_alone_without(model):
    with Engine(model, slots=1, prefix_budget=0) as engine:
        wanted, cached = dialogue(model, engine, together=False)
        assert cached == [[0] * 4] * 2
    with Engine(model, slots=4, prefill_chunk=64, prefix_budget=1 << 28) as engine:
        found, cached = dialogue(model, engine, together=True)
        stats = engine.stats()
    assert found == wanted
    shared = len(model.tokenizer.encode(SYSTEM))
    assert cached[0][0] == 0
    assert min(cached[0][1:]) > shared / 2  # computed once, while all four were at work
    assert min(cached[1]) > shared
    assert stats.decode_rows / stats.decode_steps > 2
    assert 0 < stats.prefix_bytes <= stats.kv_bytes


def test_a_tight_budget_makes_them_wait_and_changes_nothing(model):
    requests = [asked(prompt(model, question), seed) for seed, question in enumerate(ASKED)]
    with Engine(model, slots=1, prefix_budget=0) as engine:
        wanted = [tokens for one in requests for tokens, _ in answers(engine, [one])]
        most = engine.model.sequence()
        most.prefill(requests[0].prompt_ids)
        alone = sum(array.nbytes for array in most.cache.arrays())
    with Engine(model, slots=4, prefix_budget=0, kv_budget=alone * 5 // 2) as engine:
        found = [tokens for tokens, _ in answers(engine, requests)]
        assert engine.stats().kv_bytes == 0
    assert found == wanted
