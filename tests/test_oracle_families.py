"""Trained checkpoints of every generating family: logits and continuations as recorded with transformers.

On the cpu backend in exact mode, and on MLX. `test_oracle_qwen35` has more of the family whose checkpoint is in the
repository, with its MLX; these need the shared checkpoints.
"""

import numpy as np
import pytest

import hf2q
from hf2q.convert import convert
from hf2q.testing import require_fixture

LARGEST_KL = {
    "qwen3_5": 1e-9,
    "qwen3_5_moe": 1e-9,
    "qwen3_vl": 1e-9,
    "gemma4": 1e-6,
    "gemma4_moe": 1e-6,
    "deepseek_v4": 1e-6,
    "deepseek_v4_fp8": 1e-6,
}
PROMPTS = ("text_short", "text_300", "chat", "tool")
NEAR_TIE = 0.01
"""Margin of two logits below which either may win."""

pytestmark = pytest.mark.fixtures


@pytest.fixture(scope="module", params=LARGEST_KL)
def checkpoint(request, tmp_path_factory):
    source = require_fixture(request.param)
    path = tmp_path_factory.mktemp(request.param) / "model.gguf"
    convert(source, "f32", path)
    with np.load(source / "oracle.npz") as recorded:
        return request.param, path, {name: recorded[name] for name in recorded.files}


@pytest.fixture(scope="module", params=["cpu", pytest.param("mlx", marks=pytest.mark.mlx)])
def case(request, checkpoint):
    pytest.importorskip({"cpu": "numba", "mlx": "mlx.core"}[request.param])
    name, path, oracle = checkpoint
    if request.param == "mlx" and name.startswith("qwen3_5"):
        pytest.skip("test_oracle_qwen35 runs this checkpoint on MLX, logits and continuations")
    with hf2q.load(path, backend=request.param, exact=True) as model:
        yield name, model, oracle


def log_softmax(logits):
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_and_continuations_are_those_of_transformers(case, prompt):
    name, model, oracle = case
    ids = oracle[f"{prompt}.ids"].tolist()
    slow = model.backend == "mlx"  # without a GPU: of the two long prompts one has its logits read, one is continued
    if not (slow and prompt == "tool"):
        exact = oracle[f"{prompt}.logits_last32_f32"]
        found = model.logits(ids)[-len(exact) :]
        p, q = log_softmax(exact), log_softmax(found)
        assert float((np.exp(p) * (p - q)).sum(-1).mean()) < LARGEST_KL[name]
        second, first = np.sort(exact, axis=-1)[:, -2:].T
        clear = first - second > NEAR_TIE
        assert (found.argmax(-1) == exact.argmax(-1))[clear].all()
    if slow and prompt == "text_300":
        return
    wanted = oracle[f"{prompt}.greedy64"].tolist()
    count = 12 if slow else 64
    events = model.generate(ids, max_tokens=count, ignore_eos=True)
    tokens = [event.token for event in events if event.token is not None]
    for step, margin in enumerate(oracle[f"{prompt}.greedy_margin"][:count]):
        if tokens[step] != wanted[step]:
            assert margin < NEAR_TIE, f"step {step}: {tokens[step]}, expected {wanted[step]}, margin {margin}"
            break  # after a near-tie the texts go their own ways
    else:
        assert len(tokens) == count
