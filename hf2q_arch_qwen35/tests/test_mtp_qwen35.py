"""The MTP head: logits recorded with transformers' layers, and speculation that changes no answer."""

from typing import ClassVar

import numpy as np
import pytest

import hf2q
from hf2q.convert import convert
from hf2q.errors import LoadError
from hf2q.formats.gguf import open_model
from hf2q.plugins import Plugins
from hf2q.serve.sampling import SamplingParams
from hf2q.types import resolve
from hf2q_arch_qwen35.hf2q_contract import MOE, MOE_SHAPES, REFERENCE
from hf2q_arch_qwen35.hf2q_contract import TestDenseGraph as Dense
from hf2q_arch_qwen35.hf2q_contract import TestMoEGraph as Moe

MTP_EXPERTS = "mtp.layers.{j}.mlp.experts"


class MoeWithMtp(Moe):
    """The mixture, with an MTP block."""

    config: ClassVar = {**MOE, "mtp_num_hidden_layers": 1}
    mtp = True
    shapes: ClassVar = {
        **MOE_SHAPES,
        f"{MTP_EXPERTS}.gate_up_proj": ("n_expert", 40, "n_embd"),
        f"{MTP_EXPERTS}.down_proj": ("n_expert", "n_embd", "n_ff_expert"),
    }


SUITES = {"dense": Dense, "moe": MoeWithMtp}


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


@pytest.fixture(scope="module", params=sorted(SUITES))
def made(request, tmp_path_factory, plugins):
    """Name and file of each tiny model."""
    folder = tmp_path_factory.mktemp(request.param)
    source = SUITES[request.param].checkpoint().write(folder / "checkpoint")
    convert(source, "f32", folder / "model.gguf", mtp=True, plugins=plugins)
    return request.param, folder / "model.gguf"


@pytest.fixture(params=["reference", "mlx", "cpu"])
def backend(request, plugins):
    reason = resolve(plugins.backend(request.param).available)()
    if reason is not None:
        pytest.skip(reason)
    return request.param


def load(path, backend, plugins, **more):
    return hf2q.load(path, backend=backend, plugins=plugins, exact=True, **more)


def logits(model, ids, sizes):
    """Of the head after the tokens ids (1, T), shown in pieces."""
    graph, draft, ops = model._graph, model.draft, model._ops
    states = graph.hidden(ids, [graph.new_cache()])
    cache, start, found = draft.new_cache(), 0, []
    for size in sizes:
        hidden = draft.hidden(states[:, start : start + size], ids[:, start + 1 : start + 1 + size], [cache])
        found.append(ops.to_numpy(draft.head(hidden)))
        start += size
    assert cache.position == start
    return np.concatenate(found, 1)


def test_logits_equal_the_recorded_ones(made, backend, plugins):
    name, path = made
    with np.load(REFERENCE / f"mtp_{name}.npz") as recorded:
        ids, wanted = recorded["ids"], recorded["logits"]
    assert len(set(wanted.argmax(-1).ravel().tolist())) > 20
    model = load(path, backend, plugins, draft=True)
    for sizes in ([59], [40, 1, 1, 17]):
        assert np.abs(logits(model, ids, sizes) - wanted).max() <= 1e-4 * np.abs(wanted).max(), sizes


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0, seed=5, top_k=20),
        SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4),
    ],
    ids=["greedy", "random", "penalised"],
)
def test_speculation_changes_no_answer(made, backend, plugins, sampling):
    model = load(made[1], backend, plugins, draft=True)
    prompt = np.random.RandomState(4).randint(0, model.n_vocab, 30)
    plain, ahead = (
        [e.token for e in model.generate(prompt, max_tokens=48, sampling=sampling, ignore_eos=True, speculative=s)]
        for s in (False, True)
    )
    assert ahead == plain
    assert len(set(plain)) > 3


def test_the_head_is_loaded_only_when_asked_for(made, plugins, caplog):
    plain, with_head = (load(made[1], "reference", plugins, draft=draft) for draft in (False, True))
    assert plain.draft is None
    assert with_head.draft is not None
    with caplog.at_level("INFO"):
        caplog.clear()  # logs of the first two, where another test has left the level at that
        load(made[1], "reference", plugins)
        load(made[1], "reference", plugins, draft=True)
    without, whole = (record.fields["memory_bytes"] for record in caplog.records if hasattr(record, "fields"))
    with open_model(made[1]) as file:
        assert whole == sum(tensor.nbytes for tensor in file.tensors.values())  # all is F32
        block = f"blk.{with_head.hparams.n_trunk}."
        mtp = sum(tensor.nbytes for name, tensor in file.tensors.items() if name.startswith(block))
    assert whole - without == mtp > 0


def test_a_file_without_the_block_says_so(tmp_path, plugins):
    source = Dense.checkpoint().write(tmp_path / "checkpoint")
    convert(source, "f32", tmp_path / "model.gguf", mtp=False, plugins=plugins)
    with pytest.raises(LoadError, match="the model file has no MTP blocks; speculation takes one"):
        load(tmp_path / "model.gguf", "reference", plugins, draft=True)


def test_what_caches_take_is_what_was_estimated(made, backend, plugins):
    model = load(made[1], backend, plugins)
    estimate = resolve(plugins.graph(model.arch).cache_bytes)
    for tokens in (1, 256, 300):
        sequence = model.sequence()
        sequence.prefill([1] * tokens)
        held = sum(4 * int(np.prod(array.shape)) for array in sequence._cache.arrays())
        assert held == estimate(model.hparams, tokens)


def test_a_seed_gives_the_same_text_on_any_number_of_threads(made, backend, plugins):
    found = []
    for threads in (1, 2, 3):
        model = hf2q.load(made[1], backend=backend, plugins=plugins, threads=threads)
        found.append(list(model.generate([3, 1, 4], max_tokens=40, temperature=1.0, seed=11, ignore_eos=True)))
    texts = ["".join(event.text for event in events) for events in found]
    assert texts[0] == texts[1] == texts[2]
    assert len({event.token for event in found[0]}) > 10
