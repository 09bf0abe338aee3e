"""``--mmproj``: what a projector's file holds, where it goes, and that both files appear together."""

import importlib.util
import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from hf2q.convert import convert
from hf2q.convert.projector import read_preprocessor
from hf2q.errors import ConfigError, EncodeError, UnknownNameError, UsageError
from hf2q.formats.gguf import open_gguf
from hf2q.formats.gguf.shards import ShardedWriter
from hf2q.plugins import Plugins
from hf2q.types import PolicyOptions

DATA = Path(__file__).parent / "data"


@pytest.fixture
def fake(monkeypatch):
    for name in ("fake_family", "fake_tower"):
        spec = importlib.util.spec_from_file_location(name, DATA / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def plugins(fake):
    points = [("builtin", "hf2q.builtin"), ("fake", "fake_family"), ("tower", "fake_tower")]
    return Plugins.load(strict=True, entry_points=[EntryPoint(n, v, "hf2q") for n, v in points])


@pytest.fixture
def source(fake, tmp_path):
    return fake.write(tmp_path / "Tiny-VL")


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".gguf")


@pytest.mark.parametrize(
    ("recipe", "kind", "patches"),
    [("f32", "F32", "F32"), ("f16", "F16", "F16"), ("bf16", "BF16", "F32"), ("to-bf16", "F16", "F16")],
)
def test_what_is_in_the_file(plugins, source, out, recipe, kind, patches):
    convert(source, recipe, out / "mmproj-x.gguf", mmproj=True, provenance=False, plugins=plugins)
    with open_gguf(out / "mmproj-x.gguf") as file:
        assert [(name, tensor.qtype) for name, tensor in file.tensors.items()] == [
            ("v.blk.0.scale", "F32"),
            ("v.blk.0.ffn_up.weight", kind),
            ("v.blk.1.scale", "F32"),
            ("v.blk.1.ffn_up.weight", kind),
            ("v.patch_embd.weight", patches),
            ("v.position_embd.weight", "F32"),
        ]
        assert list(file.keys_in_order) == [
            "general.architecture",
            "general.type",
            "general.name",
            "general.size_label",
            "general.file_type",
            "clip.projector_type",
            "clip.vision.mean",
            "general.quantization_version",
        ]
        assert file.metadata["general.architecture"] == "clip"
        assert file.metadata["general.type"] == "mmproj"
        assert file.metadata["general.size_label"] == "0.27K"
        assert file.metadata["general.file_type"] == {"F32": 0, "F16": 1, "BF16": 32}[kind]
        assert file.metadata["clip.vision.mean"] == 0.25
    assert files(out) == ["mmproj-x.gguf"]


def test_beside_the_model(plugins, source, out):
    made = convert(source, "to-bf16", out / "x.gguf", mmproj=True, plugins=plugins)
    assert files(out) == ["mmproj-x.gguf", "x.gguf"]
    assert (made.output, made.projector.output) == (str(out / "x.gguf"), str(out / "mmproj-x.gguf"))
    assert made.projector.plan.arch == "clip"
    assert (made.projector.plan.recipe, made.plan.recipe) == ("f16", "to-bf16")
    assert made.projector.nbytes == (out / "mmproj-x.gguf").stat().st_size
    alone = convert(source, "to-bf16", out / "mmproj-y.gguf", mmproj=True, plugins=plugins)
    assert alone.projector is None
    convert(source, "to-bf16", out / "z.gguf", plugins=plugins)
    for one, other in (("mmproj-x.gguf", "mmproj-y.gguf"), ("x.gguf", "z.gguf")):
        with open_gguf(out / one) as left, open_gguf(out / other) as right:
            assert list(left.tensors) == list(right.tensors)
            assert all(left.rows(name).tobytes() == right.rows(name).tobytes() for name in left.tensors)


def test_default_names(plugins, source, out):
    convert(source, "to-bf16", out, mmproj=True, plugins=plugins)
    assert files(out) == ["Tiny-VL-26K-TO-BF16.gguf", "mmproj-Tiny-VL-F16.gguf"]


def test_a_folder_called_mmproj_names_no_projector(plugins, source, out):
    (out / "mmproj").mkdir()
    convert(source, "bf16", out / "mmproj", mmproj=True, plugins=plugins)
    assert files(out / "mmproj") == ["Tiny-VL-26K-BF16.gguf", "mmproj-Tiny-VL-BF16.gguf"]


def test_shards_are_the_models_alone(plugins, source, out):
    convert(source, "f16", out / "x.gguf", mmproj=True, split_max_tensors=3, plugins=plugins)
    assert files(out) == ["mmproj-x.gguf", "x-00001-of-00002.gguf", "x-00002-of-00002.gguf"]
    with open_gguf(out / "mmproj-x.gguf") as file:
        assert "split.count" not in file.metadata


def test_a_dry_run_shows_both_and_writes_neither(plugins, source, out):
    made = convert(source, "f16", out / "x.gguf", mmproj=True, dry_run=True, plugins=plugins)
    assert [len(one.plan.tensors) for one in (made, made.projector)] == [5, 6]
    assert files(out) == []


def test_neither_appears_when_the_projector_fails(plugins, fake, out, tmp_path):
    tower = fake.tower()
    tower["model.vision.1.up.weight"][0, 0] = 1e6  # beyond float16
    source = fake.write(tmp_path / "hot", tensors={**fake.tensors_of(), **tower})
    with pytest.raises(EncodeError, match="F16 cannot hold"):
        convert(source, "f16", out / "x.gguf", mmproj=True, plugins=plugins)
    assert list(out.iterdir()) == []


def test_names_are_given_when_all_is_complete_and_the_models_last(plugins, source, out, monkeypatch):
    seen = []
    close = ShardedWriter.close

    def watched(self):
        seen.append(files(out))
        close(self)
        seen.append(files(out))

    monkeypatch.setattr(ShardedWriter, "close", watched)
    convert(source, "f16", out / "x.gguf", mmproj=True, plugins=plugins)
    assert seen == [[], ["mmproj-x.gguf", "x.gguf"]]


@pytest.mark.parametrize("name", ["x.gguf", "mmproj-x.gguf"])
def test_an_existing_file_of_either_name_is_kept(plugins, source, out, name):
    (out / name).write_text("mine")
    with pytest.raises(UsageError, match=f"{name} exists"):
        convert(source, "f16", out / "x.gguf", mmproj=True, plugins=plugins)
    assert files(out) == [name]
    assert (out / name).read_text() == "mine"
    convert(source, "f16", out / "x.gguf", mmproj=True, force=True, plugins=plugins)
    assert files(out) == ["mmproj-x.gguf", "x.gguf"]


@pytest.mark.parametrize(
    ("flag", "options"),
    [
        ("--pure", {"options": PolicyOptions(pure=True)}),
        ("--via f32", {"via": "f32"}),
        ("--no-mtp", {"mtp": False}),
        ("--pre fake", {"pre": "fake"}),
        ("--split-max-tensors", {"split_max_tensors": 3}),
    ],
)
def test_what_decides_nothing_about_a_projector_is_refused(plugins, source, out, flag, options):
    with pytest.raises(UsageError, match=flag):
        convert(source, "to-bf16", out / "mmproj-x.gguf", mmproj=True, plugins=plugins, **options)
    assert files(out) == []


def test_a_gguf_file_has_no_tower(plugins, source, out):
    convert(source, "f32", out / "x.gguf", plugins=plugins)
    with pytest.raises(UsageError, match="--mmproj cannot be used when the source is a GGUF file"):
        convert(out / "x.gguf", "to-bf16", out / "y.gguf", mmproj=True, plugins=plugins)


def test_checkpoints_without_a_tower(plugins, fake, out, tmp_path):
    for name, config, tensors in (
        ("no-config", {"vision_config": None}, None),
        ("no-tensors", {}, fake.tensors_of()),
    ):
        source = fake.write(tmp_path / name, tensors=tensors, **config)
        with pytest.raises(UsageError, match="no vision tower") as raised:
            convert(source, "f16", out / "x.gguf", mmproj=True, plugins=plugins)
        assert "--mmproj" in raised.value.hint
    plain = fake.write(tmp_path / "plain", tensors=fake.tensors_of(), architectures=["FakeForCausalLM"])
    with pytest.raises(UsageError, match="fake models have no projector"):
        convert(plain, "f16", out / "x.gguf", mmproj=True, plugins=plugins)
    assert files(out) == []


def test_a_projector_of_a_plugin_that_is_not_installed(plugins, fake, out, tmp_path):
    source = fake.write(tmp_path / "far", architectures=["FakeFarForConditionalGeneration"])
    with pytest.raises(UnknownNameError) as raised:
        convert(source, "f16", out / "x.gguf", mmproj=True, plugins=plugins)
    assert "pip install hf2q-arch-gemma4" in raised.value.hint
    convert(source, "f16", out / "x.gguf", plugins=plugins)  # the text model needs none


def test_the_processors_settings(tmp_path):
    assert read_preprocessor(tmp_path) == {}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"a": 1, "b": 1, "media_proc_cfg": {"b": 2, "c": 2}}))
    assert read_preprocessor(tmp_path) == {"a": 1, "b": 2, "c": 2, "media_proc_cfg": {"b": 2, "c": 2}}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {"c": 3}}))
    assert read_preprocessor(tmp_path)["c"] == 3
    for odd in ("[]", '{"image_processor": 3}'):
        (tmp_path / "processor_config.json").write_text(odd)
        with pytest.raises(ConfigError, match=r"processor_config\.json"):
            read_preprocessor(tmp_path)


def test_a_missing_tensor_of_the_tower_stops_both(plugins, fake, out, tmp_path):
    tower = fake.tower()
    del tower["model.vision.0.up.weight"]
    source = fake.write(tmp_path / "half", tensors={**fake.tensors_of(), **tower})
    with pytest.raises(Exception, match=r"vision\.0\.up\.weight"):
        convert(source, "f16", out / "x.gguf", mmproj=True, plugins=plugins)
    assert list(out.iterdir()) == []


def test_values_are_those_of_the_checkpoint(plugins, fake, source, out):
    convert(source, "f32", out / "mmproj.gguf", mmproj=True, plugins=plugins)
    with open_gguf(out / "mmproj.gguf") as file:
        stored = np.frombuffer(file.rows("v.patch_embd.weight").tobytes(), "<f4")
    assert np.array_equal(stored, fake.tower()["model.vision.patch.weight"].reshape(-1))
