"""Sources that are damaged, contradictory or made to do harm, converted whole.

Each gives one error that names the thing, with a hint and the exit code of its class; what was there stays there.
"""

import importlib.util
import json
import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from hf2q.convert import convert
from hf2q.convert.preflight import check_template
from hf2q.errors import (
    ConfigError,
    EncodeError,
    FormatError,
    MissingFileError,
    SourceError,
    TensorMismatchError,
    UnknownNameError,
)
from hf2q.plugins import Plugins
from hf2q.types import MetadataField, Plan

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
X, Y = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def family(monkeypatch):
    spec = importlib.util.spec_from_file_location("fake_family", Path(__file__).parent / "data" / "fake_family.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fake_family", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plugins(family):
    points = [("builtin", "hf2q.builtin"), ("fake", "fake_family")]
    return Plugins.load(strict=True, entry_points=[EntryPoint(n, v, "hf2q") for n, v in points])


@pytest.fixture
def refused(plugins, tmp_path):
    """`refused(folder, kind, words)`: the conversion raises that, and everything that was there is as it was."""

    def check(folder, kind, words, code=3):
        (tmp_path / "out.gguf").write_bytes(b"precious")
        before = [p for p in sorted(tmp_path.rglob("*")) if not p.is_fifo()]
        with pytest.raises(kind, match=words) as caught:
            convert(folder, "f16", tmp_path / "out.gguf", plugins=plugins, force=True)
        assert caught.value.exit_code == code
        assert caught.value.hint
        assert str(folder) in caught.value.message or isinstance(caught.value, UnknownNameError)
        assert len(caught.value.message) < 1000
        assert (tmp_path / "out.gguf").read_bytes() == b"precious"
        assert [p for p in sorted(tmp_path.rglob("*")) if not p.is_fifo()] == before

    return check


@pytest.fixture
def folder(family, tmp_path):
    return family.write_checkpoint(tmp_path / "model")


def raw(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


HEADERS = {
    "nothing": (b"", "has 0 bytes"),
    "a length of 2^64-1": (raw({}, length=(1 << 64) - 1), "is 18446744073709551615"),
    "a length beyond the file": (raw({}, length=300), "needs 300 bytes"),
    "no JSON": (raw(b"{,}"), "not valid JSON"),
    "no UTF-8": (raw(b'{"\xff": 1}'), "is not UTF-8"),
    "nested deeply": (raw(b'{"a":' + b"[" * 100_000), "nested too deeply"),
    "a tensor twice": (raw(b'{"a": 1, "a": 2}'), "'a' occurs twice"),
    "an unknown dtype": (raw({"a": entry("F33")}, bytes(8)), "has the dtype 'F33'"),
    "a size below 0": (raw({"a": entry(shape=(-2, -1))}, bytes(8)), "has the shape"),
    "sizes that wrap": (raw({"a": entry(shape=(1 << 62, 4), end=0)}), "'a' has 0 bytes"),
    "an overlap": (raw({"a": entry(), "b": entry(begin=4, end=12)}, bytes(12)), "overlap at byte"),
    "a hole": (raw({"a": entry(), "b": entry(begin=9, end=17)}, bytes(17)), "belong to no tensor"),
    "offsets beyond the data": (raw({"a": entry(end=12, shape=(3,))}, bytes(8)), "lies at bytes 0 to 12"),
}


@pytest.mark.parametrize(("content", "words"), HEADERS.values(), ids=HEADERS)
def test_crafted_headers(folder, refused, content, words):
    (folder / ONE).write_bytes(content)
    refused(folder, FormatError, words)


def test_phantom_index_entries(family, folder, refused):
    names = list(family.tensors_of())
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys([*names, "phantom"], ONE)}))
    refused(folder, FormatError, "names 1 tensors that its files do not hold: phantom")
    (folder / INDEX).write_text(json.dumps({"weight_map": {**dict.fromkeys(names, ONE), names[0]: X}}))
    refused(folder, MissingFileError, f"lacks 1 of the 2 files that .* names: {X}")


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/x.safetensors", "a/../../x.safetensors", "..\\x"])
def test_an_index_that_leads_outside(folder, refused, file):
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.embed.weight": file}}))
    refused(folder, FormatError, "expected a file of the checkpoint")


def test_a_tensor_in_two_files(family, folder, refused):
    tensors = family.tensors_of()
    (folder / ONE).unlink()
    family.write_safetensors(folder / X, tensors)
    family.write_safetensors(folder / Y, {"model.embed.weight": tensors["model.embed.weight"]})
    refused(folder, FormatError, f"'model.embed.weight' is in both {X} and {Y}")


def test_a_tensor_under_two_spellings(family, folder, refused):
    tensors = family.tensors_of()
    family.write_safetensors(folder / ONE, {**tensors, "embed.weight": tensors["model.embed.weight"]})
    refused(folder, TensorMismatchError, "'embed.weight' and 'model.embed.weight' are the same tensor")


@pytest.mark.parametrize("gone", [0, 3, 6])
def test_one_expert_is_missing(family, tmp_path, refused, gone):
    tensors = family.tensors_of()
    for e in range(7):
        for part in ("gate", "down"):
            tensors[f"model.layers.1.experts.{e}.{part}"] = np.ones((64, 64), np.float32)
    del tensors[f"model.layers.1.experts.{gone}.down"]
    folder = family.write_checkpoint(tmp_path / "model", tensors, experts=7)
    refused(folder, TensorMismatchError, rf"blk\.1\.ffn_down_exps\.weight \(from layers\.1\.experts\.{gone}\.down\)")


def test_one_expert_too_many(family, tmp_path, refused):
    tensors = family.tensors_of()
    for e in range(4):
        for part in ("gate", "down"):
            tensors[f"model.layers.0.experts.{e}.{part}"] = np.ones((64, 64), np.float32)
    folder = family.write_checkpoint(tmp_path / "model", tensors, experts=3)
    refused(folder, TensorMismatchError, r"not known to fake: model\.layers\.0\.experts\.3\.down")


def test_fp8_without_scales(family, tmp_path, refused):
    tensors = family.tensors_of()
    tensors["model.layers.0.up.weight"] = np.zeros((64, 64), np.uint8)
    folder = family.write_checkpoint(tmp_path / "model", tensors)
    refused(folder, TensorMismatchError, r"model\.layers\.0\.up\.weight \(F8_E4M3\)")


@pytest.mark.parametrize("dtype", ["U8", "I8", "BOOL", "U16", "C64"])
def test_weights_of_a_type_that_is_none(family, folder, refused, dtype):
    width = {"U16": 2, "C64": 8}.get(dtype, 1)
    tensors = family.tensors_of()
    name, whole = "model.embed.weight", 272 * 64 * width
    del tensors[name]
    rest, offset, blobs = {}, whole, []
    for other, x in tensors.items():
        rest[other] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [offset, offset + x.nbytes]}
        offset += x.nbytes
        blobs.append(x.tobytes())
    header = {name: entry(dtype, (272, 64), 0, whole), **rest}
    (folder / ONE).write_bytes(raw(header, bytes(whole) + b"".join(blobs)))
    refused(folder, TensorMismatchError, f"'{name}' has the dtype {dtype}")


def test_a_gigantic_shape_of_nothing(family, folder, refused):
    tensors = {name: x for name, x in family.tensors_of().items() if "embed" not in name}
    family.write_safetensors(folder / ONE, tensors)
    size = int.from_bytes((folder / ONE).read_bytes()[:8], "little")
    header = json.loads((folder / ONE).read_bytes()[8 : 8 + size])
    data = (folder / ONE).read_bytes()[8 + size :]
    header["model.embed.weight"] = entry("F32", (1 << 62, 0), 0, 0)
    (folder / ONE).write_bytes(raw(header, data))
    refused(
        folder, TensorMismatchError, r"token_embd\.weight, made from model\.embed\.weight: shape \(4611686018427387904"
    )


@pytest.mark.parametrize("rows", [200, 300])
def test_a_resized_vocabulary_whose_config_was_forgotten(family, tmp_path, refused, rows):
    folder = family.write_checkpoint(tmp_path / "model", family.tensors_of(vocab=rows))
    refused(
        folder, TensorMismatchError, rf"shape \({rows}, 64\), expected \(272, 64\)\nhint: .* vocab_size .* to {rows}"
    )


def test_a_vocabulary_larger_than_the_embedding(family, tmp_path, refused):
    folder = family.write_checkpoint(tmp_path / "model", family.tensors_of(vocab=200), vocab=200)
    refused(folder, ConfigError, r"token with id 256, config\.json says vocab_size = 200")


def added(folder, **changes):
    """Give the tokenizer one more token, with the id 257."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"] = [{"id": 257, "content": "<|new|>", "special": True, **flags, **changes}]
    path.write_text(json.dumps(tokenizer))


def test_an_added_token_beyond_the_embedding(family, tmp_path, refused):
    folder = family.write_checkpoint(tmp_path / "model", family.tensors_of(vocab=257), vocab=257)
    added(folder)
    refused(folder, ConfigError, r"id 257 \('<\|new\|>'\), config\.json says vocab_size = 257\nhint: .*resize_token")


def test_tokenizers_that_contradict_each_other(folder, refused):
    added(folder)
    decoder = {"258": {"content": "<|new|>", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    refused(folder, ConfigError, r"'<\|new\|>' has the id 258")
    (folder / "tokenizer_config.json").unlink()
    (folder / "vocab.json").write_text(json.dumps({"th": 3}))
    refused(folder, ConfigError, r"vocab\.json gives the token 'th' the id 3, tokenizer\.json gives 'th' the id 256")
    (folder / "vocab.json").write_text(json.dumps({"th": 256, "other": 257}))
    refused(folder, ConfigError, r"'other' the id 257, tokenizer\.json gives the id 257 to '<\|new\|>'")


def test_an_older_vocabulary_that_says_less_is_no_contradiction(folder, plugins, tmp_path):
    added(folder)
    (folder / "vocab.json").write_text(json.dumps({"th": 256, "!": 33, "unused": 271}))
    convert(folder, "f16", tmp_path / "out.gguf", plugins=plugins)


def test_two_tokens_of_one_id(folder, refused):
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"]["zz"] = 256
    path.write_text(json.dumps(tokenizer))
    refused(folder, ConfigError, "'th' and 'zz' share the id 256")


@pytest.mark.parametrize("name", ["../../etc/passwd", "layers/0/up.weight", "model.layers.0.up.weight/..", "a\0b"])
def test_tensor_names_that_are_paths(family, tmp_path, refused, name):
    folder = family.write_checkpoint(tmp_path / "model", {**family.tensors_of(), name: np.ones(2, np.float32)})
    refused(folder, TensorMismatchError, "1 checkpoint tensors are not known to fake")


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "..", "a/../../b"])
def test_model_names_that_are_paths(folder, plugins, tmp_path, name):
    (folder / "README.md").write_text(f"---\nmodel_name: '{name}'\nname: '{name}'\nbasename: '{name}'\n---\n")
    (tmp_path / "here").mkdir()
    made = convert(folder, "f16", tmp_path / "here", plugins=plugins)
    assert Path(made.output).parent == tmp_path / "here"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "model"]


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("", FormatError, "not valid JSON"),
        ("[1]", ConfigError, "holds a list"),
        ('{"layers": NaN}', FormatError, "NaN is not JSON"),
        ('{"layers": -Infinity}', FormatError, "-Infinity is not JSON"),
        ('{"layers": ' + "9" * 5000 + "}", FormatError, "not valid JSON"),
        ('{"layers": 2, "layers": 3}', FormatError, "'layers' occurs twice"),
        ('{"architectures": "FakeForCausalLM"}', ConfigError, "architectures is 'FakeForCausalLM'"),
        ('{"architectures": ["OtherForCausalLM"]}', UnknownNameError, "'OtherForCausalLM'"),
        ('{"architectures": []}', ConfigError, "has no architectures, and no model_type either"),
        ('{"model_type": "other"}', ConfigError, r"model_type, 'other', is of no family that is installed \(fake\)"),
        ('{"text_config": []}', ConfigError, "has no architectures"),
    ],
)
def test_config_files(folder, refused, text, kind, words):
    (folder / "config.json").write_text(text)
    refused(folder, kind, words)


def test_a_config_without_a_class_goes_by_its_model_type(family, plugins, tmp_path, caplog):
    folder = family.write_checkpoint(tmp_path / "model", architectures=None, model_type="fake")
    made = convert(folder, "f16", tmp_path / "out.gguf", plugins=plugins)
    assert made.plan.arch == "fake"
    assert "has no architectures; by its model_type it is taken for FakeForCausalLM (arch fake)" in caplog.text
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] is None  # the copy is untouched


def test_a_model_type_of_two_families(family, plugins, tmp_path, refused, monkeypatch):
    folder = family.write_checkpoint(tmp_path / "model", architectures=None, model_type="fake")
    (entry,) = plugins.archs
    monkeypatch.setattr(plugins, "archs", [entry, msgspec.structs.replace(entry, arch="fake2")])
    refused(folder, ConfigError, "fits several families: fake, fake2\nhint: add .*FakeForCausalLM")


READ = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja", ONE)


@pytest.mark.parametrize("name", READ)
def test_pipes_where_files_should_be(folder, refused, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    refused(folder, SourceError, f"{name} is not a regular file")


@pytest.mark.parametrize("name", READ)
def test_links_that_lead_nowhere_or_round_and_round(folder, refused, name):
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(folder / "gone")
    refused(folder, MissingFileError, name)
    (folder / name).unlink()
    (folder / name).symlink_to(name)
    refused(folder, SourceError, name)


def test_links_that_lead_somewhere_are_followed(family, folder, plugins, tmp_path):
    expected = convert(folder, "f16", tmp_path / "a.gguf", plugins=plugins, provenance=False)
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in folder.iterdir():
        (linked / path.name).symlink_to(path)
    made = convert(linked, "f16", tmp_path / "b.gguf", plugins=plugins, provenance=False)
    first, second = Path(expected.output).read_bytes(), Path(made.output).read_bytes()
    assert second[-made.plan.nbytes :] == first[-expected.plan.nbytes :]
    assert not (tmp_path / "config.json").is_symlink()


NOT_FINITE = r"'blk\.1\.ffn_up\.weight' holds .* at row 3, column 5; .* \(made from model\.layers\.1\.up\.weight\)"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_none(family, tmp_path, refused, value):
    tensors = family.tensors_of()
    tensors["model.layers.1.up.weight"][3, 5] = value
    refused(family.write_checkpoint(tmp_path / "model", tensors), EncodeError, NOT_FINITE, code=1)


def test_a_model_that_chats_without_a_template_is_told(family, caplog):
    def plan(*fields):
        return Plan(arch="fake", recipe="f16", via="f16", metadata=fields, tensors=(), ignored=())

    caplog.set_level("INFO")
    (entry,) = family.hf2q_arch_entries()
    chats = SimpleNamespace(archs={"fake": msgspec.structs.replace(entry, chat_format="some")})
    check_template(plan(), SimpleNamespace(archs={"fake": entry}))
    check_template(plan(MetadataField.string("tokenizer.chat_template", "x")), chats)
    check_template(plan(MetadataField.string("tokenizer.chat_template.tool", "x")), chats)
    assert not caplog.records
    check_template(plan(), chats)
    assert "no chat template" in caplog.text
