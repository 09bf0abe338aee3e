"""From a file to a model: what loading checks, what it says, and the model's own surface. With a toy family."""

import logging
import struct

import numpy as np
import pytest

import hf2q
from hf2q.backends.cache import Cache, advance
from hf2q.errors import ContextLengthError, FormatError, LoadError, RequestError, UnknownNameError, UsageError
from hf2q.formats.gguf import GgufWriter
from hf2q.hookspecs import hookimpl
from hf2q.plugins import Plugins
from hf2q.serve.sampling import SamplingParams
from hf2q.testing.scripted import ScriptedHParams, scripted_model, scripted_tokenizer
from hf2q.types import (
    ArchEntry,
    ChatFormat,
    GraphEntry,
    MetadataField,
    Plan,
    PreTokenizer,
    TensorCatalog,
    TensorPlan,
    TensorRule,
    ValueType,
)

HF2Q_PLUGIN_API = 1
HERE = __name__


class ToyGraph:
    """A token's logits are a row of the output matrix times its embedding: enough to see weights arrive."""

    def __init__(self, hparams, weights, ops):
        self.ops = ops
        self.token_embd = weights.matrix("token_embd.weight")
        self.output = weights.matrix("output.weight") if "output.weight" in weights else self.token_embd
        self.scale = weights.array("blk.0.scale")

    @property
    def n_vocab(self):
        return self.output.shape[0]

    def new_cache(self):
        return Cache([])

    def hidden(self, ids, caches):
        advance(caches, ids.shape[1])
        return self.ops.embedding(self.ops.asarray(ids), self.token_embd) * self.scale

    def head(self, hidden):
        return self.ops.linear(hidden, self.output)


class ToyHParams(ScriptedHParams):
    """One block of one kind."""

    layer_kinds: tuple = ("only",)


@hookimpl
def hf2q_arch_entries():
    yield ArchEntry(
        arch="toy",
        hf_architectures=(),
        model_types=(),
        hparams=f"{HERE}:ToyHParams",
        catalog="toy",
        chat_format="toy",
        pre_tokenizers=(PreTokenizer(name="scripted"),),
    )


@hookimpl
def hf2q_tensor_catalogs():
    rules = (
        TensorRule(name="token_embd.weight", hf=("e",), shape=("n_vocab", 4)),
        TensorRule(name="output.weight", hf=("o",), shape=("n_vocab", 4), optional=True),
        TensorRule(name="blk.{i}.scale", hf=("s.{i}",), shape=(1, 4), layers=("only",)),
    )
    yield TensorCatalog(name="toy", rules=rules)


@hookimpl
def hf2q_forward_graphs():
    yield GraphEntry(arch="toy", graph=f"{HERE}:ToyGraph")


@hookimpl
def hf2q_chat_formats():
    yield ChatFormat(name="toy", end_of_turn=("<|im_end|>", "not in the vocabulary"))


class Point:
    """An entry point."""

    dist = None

    def __init__(self, name, value):
        self.name, self.value = name, value


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load(entry_points=[Point("builtin", "hf2q.builtin"), Point("toy", HERE)], strict=True)


def metadata(**changes):
    """Header fields of a toy model; a keyword replaces a key (dots as double underscores), None drops it."""
    model = scripted_model()
    fields = {key: value for key, value in model.metadata.items() if key != "general.architecture"}
    fields |= {"toy.block_count": 1, "toy.context_length": 16}
    fields |= {key.replace("__", "."): value for key, value in changes.items()}
    made = [MetadataField.string("general.architecture", fields.pop("general.architecture", "toy"))]
    for key, value in fields.items():
        if isinstance(value, tuple):
            element = ValueType.STRING if isinstance(value[0], str) else ValueType.INT32
            made.append(MetadataField.array(key, element, value))
        elif isinstance(value, str):
            made.append(MetadataField.string(key, value))
        elif value is not None:
            made.append(MetadataField.u32(key, value))
    return tuple(made)


N_VOCAB = scripted_tokenizer().n_vocab


def tensors(n_vocab=N_VOCAB):
    rng = np.random.default_rng(0)
    return {
        "token_embd.weight": rng.standard_normal((n_vocab, 4)).astype(np.float32),
        "output.weight": rng.standard_normal((n_vocab, 4)).astype(np.float32),
        "blk.0.scale": np.array([1.0, 2.0, 3.0, 4.0], np.float32),
    }


def write(path, fields, arrays):
    plans, offset = [], 0
    for name, array in arrays.items():
        plans.append(
            TensorPlan(
                name=name,
                shape=array.shape,
                qtype="F32",
                via="F32",
                reason="test",
                nbytes=array.nbytes,
                offset=offset,
                inputs=(),
            )
        )
        offset += -(-array.nbytes // 32) * 32
    plan = Plan(arch="toy", recipe="f32", via="F32", metadata=fields, tensors=tuple(plans))
    writer = GgufWriter(str(path), plan)
    for name, array in arrays.items():
        writer.write(name, array.reshape(-1, array.shape[-1]).view(np.uint8))
    writer.close()
    return path


@pytest.fixture
def toy(tmp_path):
    return write(tmp_path / "toy-1B.gguf", metadata(), tensors())


@pytest.fixture(params=["reference", pytest.param("mlx", marks=pytest.mark.mlx)])
def backend(request):
    if request.param == "mlx":
        pytest.importorskip("mlx.core")
    return request.param


def test_a_file_becomes_a_model(toy, plugins, backend, caplog):
    with caplog.at_level(logging.INFO), hf2q.load(toy, backend=backend, plugins=plugins) as model:
        arrays = tensors()
        ids = [3, 200, 5]
        wanted = (arrays["token_embd.weight"][ids] * arrays["blk.0.scale"]) @ arrays["output.weight"].T
        assert np.allclose(model.logits(ids), wanted, atol=1e-5)
        assert (model.name, model.arch, model.backend) == ("toy-1B", "toy", backend)
        assert (model.n_vocab, model.context_length) == (N_VOCAB, 16)
        assert model.path == toy
        assert model.chat_template.startswith("{% for")
        assert model.chat_format.name == "toy"
        tokenizer = scripted_tokenizer()
        assert model.end_ids == {tokenizer.id_of("<|im_end|>"), tokenizer.id_of("<|endoftext|>")}
        assert model.metadata["toy.block_count"] == 1
    assert "F32: 3 tensors" in caplog.text
    assert f"loaded {toy} (toy)" in caplog.text
    assert np.allclose(model.logits(ids), wanted, atol=1e-5)  # the file is closed, the weights are not in it


def test_an_optional_tensor_may_be_absent(tmp_path, plugins):
    arrays = tensors()
    del arrays["output.weight"]
    model = hf2q.load(write(tmp_path / "m.gguf", metadata(), arrays), backend="reference", plugins=plugins)
    embedding = arrays["token_embd.weight"]
    assert np.allclose(model.logits([7]), (embedding[[7]] * arrays["blk.0.scale"]) @ embedding.T, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("token_embd.weight"), r"1 tensors are missing: token_embd\.weight"),
        (lambda a: a.update({"blk.0.extra": np.ones(3, np.float32)}), r"1 tensors are not known to toy: blk\.0\.extra"),
        (
            lambda a: a.update({"blk.0.scale": np.ones(5, np.float32)}),
            r"blk\.0\.scale is \(5,\), expected \(1, 4\)",
        ),
        (
            lambda a: a.update({"output.weight": np.ones((4, N_VOCAB), np.float32)}),
            rf"output\.weight is \(4, {N_VOCAB}\), expected \({N_VOCAB}, 4\)",
        ),
        (lambda a: a.update({"blk.1.scale": np.ones(4, np.float32)}), "block_count is 1, but there are tensors of"),
    ],
)
def test_tensors_that_do_not_fit_the_family_are_listed(tmp_path, plugins, change, message):
    arrays = tensors()
    change(arrays)
    with pytest.raises(LoadError, match=message):
        hf2q.load(write(tmp_path / "m.gguf", metadata(), arrays), plugins=plugins)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"general__architecture": "qwen35", "qwen35__block_count": 1}, UnknownNameError, "hf2q-arch-qwen35"),
        ({"general__architecture": "unheard"}, UnknownNameError, "no arch 'unheard'"),
        ({"toy__block_count": 2}, LoadError, "block 1 has no tensors"),
        ({"toy__context_length": None}, LoadError, r"toy\.context_length is None"),
        ({"toy__context_length": 1}, LoadError, r"toy\.context_length is 1"),
        ({"split.count": 3}, FormatError, "split.no is None"),
        ({"tokenizer.chat_template": 5}, LoadError, "tokenizer.chat_template is of type UINT32, expected a text"),
        ({"tokenizer.chat_template": ("x",)}, LoadError, "chat_template is of type ARRAY, expected a text"),
        ({"tokenizer.chat_template.tool": 5}, LoadError, r"chat_template\.tool is of type UINT32, expected a text"),
        ({"tokenizer.ggml.pre": "other"}, LoadError, "'other'"),
    ],
)
def test_metadata_that_cannot_be_run(tmp_path, plugins, changes, error, message):
    with pytest.raises(error, match=message) as caught:
        hf2q.load(write(tmp_path / "m.gguf", metadata(**changes), tensors()), backend="reference", plugins=plugins)
    assert str(tmp_path / "m.gguf") in caught.value.message


def test_a_qtype_without_a_codec_says_what_to_install(toy, plugins, monkeypatch):
    rest = {codec.name: codec for codec in plugins.codecs if codec.name != "I32"}
    monkeypatch.setattr(plugins.codecs, "_items", rest)
    data = bytearray(toy.read_bytes())
    name = struct.pack("<Q", len("token_embd.weight")) + b"token_embd.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8  # dimensions, then the type
    assert data[at : at + 4] == struct.pack("<I", 0)
    data[at : at + 4] = struct.pack("<I", 26)  # I32: as large as F32
    toy.write_bytes(data)
    with pytest.raises(UnknownNameError, match="no codec 'I32'"):
        hf2q.load(toy, backend="reference", plugins=plugins)


def test_unknown_backends_and_broken_files(toy, plugins):
    with pytest.raises(UnknownNameError, match="no backend 'tpu'"):
        hf2q.load(toy, backend="tpu", plugins=plugins)
    toy.write_bytes(toy.read_bytes()[:-1])
    with pytest.raises(FormatError):
        hf2q.load(toy, plugins=plugins)


# -------------------------------------------------------------------------------------------------------- the model


def test_long_inputs_are_computed_in_chunks(plugins, tmp_path):
    model = scripted_model(script=lambda ids: sum(ids) % 200, context_length=2000)
    ids = [(7 * n) % 200 for n in range(1100)]
    logits = model.logits(ids)
    assert logits.shape == (1100, model.n_vocab)
    assert logits.argmax(-1)[[0, 511, 512, 1099]].tolist() == [sum(ids[: n + 1]) % 200 for n in (0, 511, 512, 1099)]
    assert max(tokens for _, tokens in model._graph.calls) == 512


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([], RequestError, "expected a sequence of token ids"),
        ([[1, 2]], RequestError, "expected a sequence of token ids"),
        ([0.5], RequestError, "expected a sequence of token ids"),
        ([[1, 2], [3]], RequestError, "expected a sequence of token ids"),
        ("text", RequestError, "expected a sequence of token ids"),
        (None, RequestError, "expected a sequence of token ids"),
        (7, RequestError, "expected a sequence of token ids"),
        ({1: 2}, RequestError, "expected a sequence of token ids"),
        (np.array([True]), RequestError, "expected a sequence of token ids"),
        ([2**70], RequestError, "expected a sequence of token ids"),
        ([1, 10**6], RequestError, "token id 1000000 is outside"),
        ([-1, 2], RequestError, "token id -1 is outside"),
        ([1] * 17, ContextLengthError, "17 tokens do not fit the model's context of 16"),
    ],
)
def test_ids_that_make_no_sense_never_reach_the_graph(ids, error, message):
    with pytest.raises(error, match=message):
        scripted_model(context_length=16).logits(ids)


def test_generate_takes_settings_one_way_or_the_other():
    model = scripted_model(script=lambda ids: (ids[-1] + 1) % 200)

    def tokens(**settings):
        return [event.token for event in model.generate([1], max_tokens=3, **settings)][:-1]

    assert tokens() == tokens(temperature=0.5, seed=3, top_k=5, top_p=0.9, min_p=0.1) == [2, 3, 4]
    assert tokens(sampling=SamplingParams(logit_bias={9: 100.0})) == [9, 9, 9]
    with pytest.raises(UsageError, match="not both: temperature, seed"):
        model.generate([1], sampling=SamplingParams(), temperature=1.0, seed=1)
    with pytest.raises(RequestError, match="top_p"):
        model.generate([1], top_p=3.0)


def test_generate_refuses_at_once_and_not_at_the_first_event():
    model = scripted_model(context_length=4)
    with pytest.raises(ContextLengthError):
        model.generate([1, 2, 3, 4])
    with pytest.raises(RequestError):
        model.generate("")


@pytest.mark.parametrize(
    ("prompt", "more", "param"),
    [
        ([1, 10**6], {}, "prompt"),
        ([1.5], {}, "prompt"),
        (["a"], {}, "prompt"),
        (None, {}, "prompt"),
        (b"text", {}, "prompt"),
        ("\ud800", {}, None),
        ("x", {"max_tokens": 0}, "max_tokens"),
        ("x", {"max_tokens": 1.5}, "max_tokens"),
        ("x", {"max_tokens": "3"}, "max_tokens"),
        ("x", {"max_tokens": True}, "max_tokens"),
        ("x", {"temperature": "hot"}, "temperature"),
        ("x", {"top_k": 1.5}, "top_k"),
        ("x", {"seed": "x"}, "seed"),
        ("x", {"stop": 5}, "stop"),
        ("x", {"stop": None}, "stop"),
        ("x", {"stop": [5]}, "stop"),
        ("x", {"stop": ""}, "stop"),
        ("x", {"sampling": {"temperature": 1}}, "sampling"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_at_once(prompt, more, param):
    with pytest.raises(RequestError) as caught:
        scripted_model().generate(prompt, **more)
    assert caught.value.param == param


def test_arrays_are_as_good_as_lists():
    model = scripted_model(script=lambda ids: (ids[-1] + 1) % 200)
    for ids in ([4, 5], (4, 5), np.array([4, 5]), np.array([4, 5], np.uint8), range(4, 6)):
        assert [event.token for event in model.generate(ids, max_tokens=2)] == [6, 7, None]
        assert model.logits(ids).argmax(-1).tolist() == [5, 6]


def test_a_text_gets_bos_and_never_eos():
    model = scripted_model(script=lambda ids: ids[0] % 256)
    tokenizer = model.tokenizer
    tokenizer.bos_id, tokenizer.add_bos, tokenizer.add_eos = 65, True, True
    first, last = model.generate("x", max_tokens=1)
    assert (first.token, last.usage.prompt_tokens) == (65, 2)


def test_ends_may_be_ignored_and_are_not_shown():
    tokenizer = scripted_tokenizer()
    end = tokenizer.id_of("<|im_end|>")
    model = scripted_model(script=lambda ids: end if len(ids) % 2 else ord("a"))
    events = list(model.generate([5, 6], max_tokens=10))
    assert [event.token for event in events] == [ord("a"), end, None]
    assert ("".join(event.text for event in events), events[-1].finish_reason) == ("a", "stop")
    assert events[-1].usage.completion_tokens == 2
    events = list(model.generate([5, 6], max_tokens=4, ignore_eos=True))
    assert ("".join(event.text for event in events), events[-1].finish_reason) == ("aa", "length")


def test_a_sequence_can_be_trimmed_and_copied():
    model = scripted_model(script=lambda ids: sum(ids) % 200)
    sequence = model.sequence()
    sequence.prefill([1, 2])
    copy = sequence.copy()
    assert sequence.next_logits([3]).argmax() == 6
    assert copy.next_logits([30]).argmax() == 33
    sequence.trim(1)
    assert sequence.position == 1
    assert sequence.next_logits([10]).argmax() == 11


def test_a_warm_up_takes_one_token_and_then_ten_and_leaves_nothing(toy, plugins, monkeypatch):
    model = scripted_model(script=lambda ids: 65)
    model.warm_up()
    assert model._graph.calls == [(1, 1), (1, 10)]
    small = scripted_model(script=lambda ids: 65, context_length=4)
    small.warm_up()
    assert small._graph.calls == [(1, 1), (1, 4)]
    calls = []
    hidden = ToyGraph.hidden
    monkeypatch.setattr(ToyGraph, "hidden", lambda *given: calls.append(given[1].shape) or hidden(*given))
    hf2q.load(toy, backend="reference", plugins=plugins)
    assert calls == []
    hf2q.load(toy, backend="reference", plugins=plugins, warm_up=True)
    assert calls == [(1, 1), (1, 10)]


def test_a_family_without_a_draft_head_says_so(toy, plugins):
    with pytest.raises(UsageError, match="the family toy has no draft head"):
        hf2q.load(toy, backend="reference", plugins=plugins, draft=True)
