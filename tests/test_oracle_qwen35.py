"""Trained checkpoints, converted and run: logits, continuations and perplexity as recorded with transformers.

The recordings (oracle.npz) are described in the fixture's PROVENANCE.md: four prompts with logits at every position
(float16, the last 32 exactly), 64 greedy tokens each, and 16 windows of held-out text.
"""

from pathlib import Path

import numpy as np
import pytest

import hf2q
from hf2q.convert import convert
from hf2q.testing import require_fixture

PROMPTS = ("text_short", "text_300", "chat", "tool")
NEAR_TIE = 0.01
"""Margin of two logits below which either may win."""
ANSWER = "The capital of Japan is Tokyo."
CHAT = "<|im_start|>user\nWhat is the capital of Japan?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def log_softmax(logits):
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def mean_kl(wanted, found):
    p, q = log_softmax(wanted), log_softmax(found)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


class Case:
    """A checkpoint with its recordings, and models made from it, each once."""

    def __init__(self, source, folder):
        self.source, self.folder = source, folder
        with np.load(source / "oracle.npz") as recorded:
            self.oracle = {name: recorded[name] for name in recorded.files}
        self._models = {}

    def model(self, recipe, backend):
        path = self.folder / f"{recipe}.gguf"
        if not path.exists():
            convert(self.source, recipe, path)
        if (recipe, backend) not in self._models:
            self._models[recipe, backend] = hf2q.load(path, backend=backend, exact=recipe == "f32")
        return self._models[recipe, backend]


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return Case(Path(__file__).parent / "data" / "qwen3_5", tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    return Case(require_fixture("qwen3_5_moe"), tmp_path_factory.mktemp("moe"))


@pytest.fixture(params=["dense", pytest.param("moe", marks=pytest.mark.fixtures)])
def case(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["reference", pytest.param("mlx", marks=pytest.mark.mlx)])
def backend(request):
    if request.param == "mlx":
        pytest.importorskip("mlx.core")
    return request.param


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_are_those_of_transformers(case, backend, prompt):
    logits = case.model("f32", backend).logits(case.oracle[f"{prompt}.ids"].tolist())
    exact = case.oracle[f"{prompt}.logits_last32_f32"]
    assert mean_kl(exact, logits[-len(exact) :]) < 1e-9
    everywhere = case.oracle[f"{prompt}.logits_f16"].astype(np.float32)
    assert logits.shape == everywhere.shape
    assert (np.abs(logits - everywhere) <= 1e-3 + np.abs(logits) * 2.0**-11).all()  # float16 rounds to 11 bits
    second, first = np.sort(everywhere, axis=-1)[:, -2:].T
    clear = first - second > NEAR_TIE
    assert clear.mean() > 0.9
    assert (logits.argmax(-1) == everywhere.argmax(-1))[clear].all()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_continuations_are_those_of_transformers(case, backend, prompt):
    ids = case.oracle[f"{prompt}.ids"].tolist()
    wanted = case.oracle[f"{prompt}.greedy64"].tolist()
    events = case.model("f32", backend).generate(ids, max_tokens=64, ignore_eos=True)
    found = [event.token for event in events if event.token is not None]
    assert len(found) == 64
    for step, margin in enumerate(case.oracle[f"{prompt}.greedy_margin"]):
        if found[step] != wanted[step]:
            assert margin < NEAR_TIE, f"step {step}: {found[step]}, expected {wanted[step]}, margin {margin}"
            break  # after a near-tie the texts go their own ways


def perplexity(model, windows):
    losses = []
    for ids in windows:
        logits = log_softmax(model.logits(ids.tolist())[:-1])
        losses.append(-logits[np.arange(len(ids) - 1), ids[1:]])
    return np.array(losses)


@pytest.mark.parametrize(("backend", "windows"), [("reference", 16), pytest.param("mlx", 1, marks=pytest.mark.mlx)])
def test_perplexity_of_held_out_text(case, backend, windows):
    if backend == "mlx":
        pytest.importorskip("mlx.core")
    found = perplexity(case.model("f32", backend), case.oracle["ppl.ids"][:windows])
    wanted = case.oracle["ppl.nll"][:windows]
    assert abs(np.exp(found.mean()) - np.exp(wanted.mean())) < 0.01
    assert np.abs(found - wanted).max() < 1e-3


@pytest.mark.parametrize("recipe", ["bf16", "f16", "q8_0", "q4_0", "q6_k", "q4_k_m"])
def test_quantized_weights_give_what_their_decoded_numbers_give(dense, backend, recipe):
    """The reference decodes every weight; a backend that runs them quantized computes the same."""
    ids = dense.oracle["chat.ids"].tolist()
    wanted = dense.model(recipe, "reference").logits(ids)
    found = dense.model(recipe, backend).logits(ids)
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    # and quantization costs little: an order of magnitude above what these files measure
    assert mean_kl(dense.oracle["chat.logits_last32_f32"], found[-32:]) < 0.01


@pytest.mark.parametrize("recipe", ["f32", "q8_0", "q4_k_m"])
def test_the_answer_is_right(dense, backend, recipe):
    events = list(dense.model(recipe, backend).generate(CHAT, max_tokens=40))
    assert "".join(event.text for event in events) == ANSWER
    assert events[-1].finish_reason == "stop"


def test_stop_strings_end_an_answer(dense):
    events = list(dense.model("f32", "reference").generate(CHAT, max_tokens=40, stop=[" Tok", "zzz"]))
    assert "".join(event.text for event in events) == "The capital of Japan is"
    assert events[-1].finish_reason == "stop"
