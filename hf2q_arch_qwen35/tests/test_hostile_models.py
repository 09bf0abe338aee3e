"""Files that lie, through every command that loads one: one clear error, the same everywhere, never a traceback."""

import re
import struct

import numpy as np
import pytest

import hf2q
from hf2q.cli import main
from hf2q.convert import convert
from hf2q.errors import FormatError, Hf2qError, LoadError, UnknownNameError
from hf2q.formats.gguf import GgufWriter, open_model
from hf2q.plugins import Plugins
from hf2q.types import MetadataField, Plan, TensorPlan, ValueType
from hf2q_arch_qwen35.hf2q_contract import TestDenseGraph as Dense

HUGE = (1 << 32) - 1


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


@pytest.fixture(scope="module")
def honest(tmp_path_factory, plugins):
    folder = tmp_path_factory.mktemp("honest")
    source = Dense.checkpoint().write(folder / "checkpoint")
    convert(source, "f32", folder / "model.gguf", mtp=True, plugins=plugins)
    return folder / "model.gguf"


def rewritten(source, target, *, keys=None, tensors=None):
    """A copy with other keys (a field, or None to drop one) and tensors (an array, or None)."""
    with open_model(source) as file:
        fields = {key: file.metadata.field(key) for key in file.metadata}
        arrays = {
            name: np.array(file.rows(name)).view(np.float32).reshape(tensor.shape)
            for name, tensor in file.tensors.items()
        }
    fields |= keys or {}
    arrays |= tensors(arrays) if tensors else {}
    plans, offset = [], 0
    kept = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items() if array is not None}
    for name, array in kept.items():
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
    metadata = tuple(field for field in fields.values() if field is not None)
    writer = GgufWriter(
        str(target), Plan(arch="qwen35", recipe="f32", via="F32", metadata=metadata, tensors=tuple(plans))
    )
    for name, array in kept.items():
        writer.write(name, array.reshape(-1, array.shape[-1]).view(np.uint8))
    writer.close()
    return target


def u32(key, value):
    return {f"qwen35.{key}": MetadataField.u32(f"qwen35.{key}", value)}


def text(key, value="many"):
    return {key: MetadataField.string(key, value)}


def with_nan(arrays):
    broken = arrays["blk.1.ffn_up.weight"].copy()
    broken[3, 5] = np.nan
    return {"blk.1.ffn_up.weight": broken}


def tokens(*texts):
    key = "tokenizer.ggml.tokens"
    return {key: MetadataField.array(key, ValueType.STRING, texts)}


LIES = {
    # metadata that are absurd, of another type, or contradict the tensors
    "block_count too high": (u32("block_count", 7), None, LoadError, "block_count is 7, but block 6 has no tensors"),
    "block_count too low": (u32("block_count", 3), None, LoadError, "block_count is 3, but there are tensors of block"),
    "block_count absurd": (u32("block_count", HUGE), None, LoadError, f"block_count is {HUGE}, but block 6 has no"),
    "block_count is text": (text("qwen35.block_count"), None, LoadError, "block_count is of type STRING"),
    "no block_count": ({"qwen35.block_count": None}, None, LoadError, "no key 'qwen35.block_count'"),
    "zero heads": (u32("attention.head_count", 0), None, LoadError, "attention.head_count is 0, expected"),
    "zero key heads": (u32("attention.head_count_kv", 0), None, LoadError, "attention.head_count_kv is 0, expected"),
    "heads that do not divide": (u32("attention.head_count", 5), None, LoadError, "5 attention heads are no multiple"),
    "absurd heads": (u32("attention.head_count", 1 << 30), None, LoadError, "tensors have another shape"),
    "zero head size": (u32("attention.key_length", 0), None, LoadError, "attention.key_length is 0, expected"),
    "zero width": (u32("embedding_length", 0), None, LoadError, "embedding_length is 0, expected"),
    "another width": (u32("embedding_length", 64), None, LoadError, "tensors have another shape"),
    "absurd width": (u32("embedding_length", HUGE), None, LoadError, "tensors have another shape"),
    "width is text": (text("qwen35.embedding_length"), None, LoadError, "embedding_length is 'many', expected"),
    "no context": (u32("context_length", 0), None, LoadError, "context_length is 0, expected"),
    "context is text": (text("qwen35.context_length"), None, LoadError, "context_length is 'many', expected"),
    "epsilon is text": (
        text("qwen35.attention.layer_norm_rms_epsilon"),
        None,
        LoadError,
        "layer_norm_rms_epsilon is 'many', expected",
    ),
    "epsilon is NaN": (
        {
            "qwen35.attention.layer_norm_rms_epsilon": MetadataField.f32(
                "qwen35.attention.layer_norm_rms_epsilon", float("nan")
            )
        },
        None,
        LoadError,
        "layer_norm_rms_epsilon is nan, expected",
    ),
    "odd rope": (u32("rope.dimension_count", 7), None, LoadError, "7 rotated dimensions"),
    "absurd MTP": (u32("nextn_predict_layers", 6), None, LoadError, "6 MTP blocks of 6 blocks leave no model"),
    "no state heads": (u32("ssm.time_step_rank", 0), None, LoadError, "ssm.time_step_rank is 0, expected"),
    "unknown arch": (text("general.architecture", "unheard"), None, UnknownNameError, "no arch 'unheard'"),
    "arch is a number": (
        {"general.architecture": MetadataField.u32("general.architecture", 7)},
        None,
        FormatError,
        "general.architecture",
    ),
    # vocabularies
    "vocabulary too small": (tokens("a", "b"), None, LoadError, "tensors have another shape: token_embd.weight"),
    "vocabulary is text": (text("tokenizer.ggml.tokens"), None, LoadError, "tokenizer.ggml.tokens"),
    "no vocabulary": ({"tokenizer.ggml.tokens": None}, None, LoadError, "tokenizer.ggml.tokens is missing or empty"),
    "unknown pre-tokenizer": (text("tokenizer.ggml.pre", "odd"), None, LoadError, "'odd'"),
    "merges are a number": (
        {"tokenizer.ggml.merges": MetadataField.u32("tokenizer.ggml.merges", 3)},
        None,
        LoadError,
        "tokenizer.ggml.merges",
    ),
    # tensors
    "a tensor is missing": (
        None,
        lambda arrays: {"blk.1.ffn_up.weight": None},
        LoadError,
        "1 tensors are missing: blk.1.ffn_up.weight",
    ),
    "a tensor too many": (
        None,
        lambda arrays: {"blk.1.ffn_extra.weight": np.ones((2, 2))},
        LoadError,
        "1 tensors are not known to qwen35: blk.1.ffn_extra.weight",
    ),
    "a tensor lies across": (
        None,
        lambda arrays: {"blk.1.ffn_up.weight": arrays["blk.1.ffn_up.weight"].T},
        LoadError,
        "blk.1.ffn_up.weight is (48, 80), expected (80, 48)",
    ),
    "a NaN": (None, with_nan, LoadError, "tensor 'blk.1.ffn_up.weight' (F32) holds nan in row 3, column 5"),
}


def told(capsys, *words):
    code = main(list(words))
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


@pytest.mark.parametrize("name", sorted(LIES))
def test_a_lie_is_one_error_everywhere(name, honest, plugins, tmp_path, capsys):
    keys, tensors, kind, message = LIES[name]
    path = rewritten(honest, tmp_path / "m.gguf", keys=keys, tensors=tensors)
    with pytest.raises(kind, match=re.escape(message)) as caught:
        hf2q.load(path, backend="reference", plugins=plugins)
    said = f"error: {caught.value.message}"
    options = ("--backend", "reference")
    code, out, err = told(capsys, "generate", "--model", str(path), "--prompt", "x", *options)
    assert (code, out) == (caught.value.exit_code, "")
    assert err.startswith(said)
    code, out, err = told(capsys, "bench", str(path), "-p", "4", "-n", "0", "-r", "1", *options)
    assert (code, out) == (caught.value.exit_code, "")
    assert err.startswith(said)
    code, out, err = told(capsys, "info", str(path), "--json")  # it looks at the header alone, and shows what is there
    assert (code == 0 and out.startswith("{")) or err.startswith("error: ")


def cut(data):
    return data[: len(data) // 2]


def no_tensors_said(data):
    return data[:8] + struct.pack("<q", 1 << 60) + data[16:]


BROKEN = {
    "truncated data": cut,
    "truncated header": lambda data: data[:200],
    "empty": lambda data: b"",
    "no magic": lambda data: b"GGML" + data[4:],
    "another version": lambda data: data[:4] + struct.pack("<I", 99) + data[8:],
    "absurd number of tensors": no_tensors_said,
    "absurd number of keys": lambda data: data[:16] + struct.pack("<q", -1) + data[24:],
    "the last byte is missing": lambda data: data[:-1],
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_broken_file_is_one_error_everywhere(name, honest, plugins, tmp_path, capsys):
    path = tmp_path / "m.gguf"
    path.write_bytes(BROKEN[name](honest.read_bytes()))
    with pytest.raises(FormatError) as caught:
        hf2q.load(path, backend="reference", plugins=plugins)
    assert str(path) in caught.value.message
    for words in (
        ("generate", "--model", str(path), "--prompt", "x"),
        ("bench", str(path)),
        ("info", str(path)),
    ):
        code, out, err = told(capsys, *words)
        assert (code, out) == (caught.value.exit_code, ""), words
        assert err.startswith(f"error: {caught.value.message}"), words


def test_the_honest_file_loads(honest, plugins, tmp_path, capsys):
    path = rewritten(honest, tmp_path / "m.gguf")
    assert hf2q.load(path, backend="reference", plugins=plugins).arch == "qwen35"
    for words in (
        ("generate", "--model", str(path), "--prompt", "x", "--max-tokens", "2", "--backend", "reference"),
        ("bench", str(path), "-p", "4", "-n", "1", "-r", "1", "--backend", "reference"),
        ("info", str(path)),
    ):
        assert told(capsys, *words)[0] == 0


def test_too_large_a_context_is_refused_with_numbers(honest, plugins, tmp_path, capsys, monkeypatch):
    from hf2q.backends.reference import ReferenceOps

    monkeypatch.delenv("HF2Q_IGNORE_MEMORY", raising=False)
    monkeypatch.setattr(ReferenceOps, "available", lambda self: 200_000)
    with pytest.raises(Hf2qError, match=r"does not fit into memory: it takes .*0\.20 MB are available"):
        hf2q.load(honest, backend="reference", plugins=plugins)
    words = ["generate", "--model", str(honest), "--prompt", "x", "--max-tokens", "1", "--backend", "reference"]
    code, _, err = told(capsys, *words)
    assert code == 1
    assert "does not fit into memory" in err
    assert "--ignore-memory" in err
    assert told(capsys, *words, "--ignore-memory")[0] == 0
    monkeypatch.setenv("HF2Q_IGNORE_MEMORY", "1")
    assert told(capsys, *words)[0] == 0
    assert told(capsys, "bench", str(honest), "-p", "4", "-n", "0", "-r", "1", "--backend", "reference")[0] == 0
