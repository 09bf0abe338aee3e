"""Plans of a family that is small enough to see through: order, types, offsets, metadata."""

import importlib.util
import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from hf2q.convert.names import find_recipe
from hf2q.convert.plan import make_plan
from hf2q.convert.source import open_source
from hf2q.errors import ContractError, MissingFileError, TensorMismatchError, UnknownNameError, UsageError
from hf2q.plugins import Plugins
from hf2q.types import Recipe, TypeChoice


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
def plan(plugins):
    def make(folder, recipe="f16", **options):
        chosen = find_recipe(plugins, recipe) if isinstance(recipe, str) else recipe
        return make_plan(open_source(str(folder)), chosen, plugins, **options)

    return make


def test_converter_files(family, plan, tmp_path):
    made = plan(family.write_checkpoint(tmp_path / "small-model")).plan
    # the checkpoint's own order, which for one file is that of its names
    assert [t.name for t in made.tensors] == [
        "token_embd.weight",
        "blk.0.attn_norm.weight",
        "blk.0.ffn_up.weight",
        "blk.1.attn_norm.weight",
        "blk.1.ffn_up.weight",
    ]
    assert [t.qtype for t in made.tensors] == ["F16", "F32", "F16", "F32", "F16"]
    assert [t.reason for t in made.tensors][:2] == ["default of f16", "one-dimensional"]
    assert made.tensors[0].nbytes == 272 * 64 * 2
    assert [t.offset for t in made.tensors] == [0, 34816, 35072, 43264, 43520]  # multiples of 32
    assert made.tensors[1].inputs == ("model.layers.0.norm.weight",)
    assert made.parameters == 272 * 64 + 2 * (64 * 64 + 64)
    assert made.nbytes == sum(t.nbytes for t in made.tensors)


def test_metadata_of_converter_files(family, plan, tmp_path):
    fields = plan(family.write_checkpoint(tmp_path / "small-model"), "bf16").plan.metadata
    assert [field.key for field in fields][:9] == [
        "general.architecture",
        "general.type",
        "general.name",
        "general.size_label",
        "fake.block_count",
        "general.file_type",
        "fake.embedding_length",
        "general.quantization_version",
        "tokenizer.ggml.model",
    ]
    values = {field.key: field.value for field in fields}
    assert values["general.name"] == "Small Model"
    assert values["general.size_label"] == "26K"
    assert values["general.file_type"] == 32
    assert values["tokenizer.ggml.pre"] == "fake"
    assert len(values["tokenizer.ggml.tokens"]) == 272


def test_quantized_files_have_another_order_and_keys_at_the_end(family, plan, tmp_path):
    tensors = family.tensors_of(layers=11)
    made = plan(family.write_checkpoint(tmp_path / "m", tensors, layers=11), "to-bf16").plan
    assert [t.name for t in made.tensors][:5] == [
        "token_embd.weight",
        "blk.0.attn_norm.weight",
        "blk.0.ffn_up.weight",
        "blk.1.attn_norm.weight",
        "blk.1.ffn_up.weight",
    ]
    assert made.tensors[-1].name == "blk.10.ffn_up.weight"  # by number, not by text
    assert [field.key for field in made.metadata][-2:] == ["general.quantization_version", "general.file_type"]
    assert made.metadata[-1].value == 99
    assert [t.via for t in made.tensors][:2] == ["F16", "F32"]  # float32 sources count as f16
    assert made.tensors[0].reason == "F16 of 11"


@pytest.mark.parametrize(("dtype", "via"), [(np.float16, "f16"), (np.uint16, "bf16"), (np.float32, "f16")])
def test_the_intermediate_is_that_of_the_first_half_precision_matrix(family, plan, tmp_path, dtype, via):
    tensors = family.tensors_of()
    tensors["model.layers.1.up.weight"] = tensors["model.layers.1.up.weight"].astype(dtype)
    folder = family.write_checkpoint(tmp_path / "m", tensors)
    assert plan(folder, "to-bf16").plan.via == via
    assert plan(folder, "to-bf16", via="f32").plan.via == "f32"


def test_ignored_tensors_do_not_decide_the_intermediate(family, plan, tmp_path):
    tensors = family.tensors_of(dtype=np.float16) | {"a.vision.x": np.zeros((2, 2), np.uint16)}
    with pytest.raises(TensorMismatchError, match=r"a\.vision\.x"):
        plan(family.write_checkpoint(tmp_path / "m", tensors), "to-bf16")
    tensors = family.tensors_of(dtype=np.float16) | {"model.vision.x": np.zeros((2, 2), np.uint16)}
    made = plan(family.write_checkpoint(tmp_path / "m", tensors), "to-bf16").plan
    assert made.via == "f16"
    assert made.ignored == (("model.vision.x", "no eyes"),)


def test_via_of_files_that_are_not_quantized(family, plan, tmp_path):
    folder = family.write_checkpoint(tmp_path / "m")
    assert plan(folder, "bf16", via="bf16").plan.via == "bf16"
    with pytest.raises(UsageError, match="contradicts"):
        plan(folder, "bf16", via="f16")
    with pytest.raises(UsageError, match="--via q8_0 is unknown"):
        plan(folder, "bf16", via="q8_0")


def test_mtp_blocks_can_be_left_out(family, plan, tmp_path):
    tensors = family.tensors_of()
    for name in ("up", "norm"):
        tensors[f"mtp.0.{name}.weight"] = tensors[f"model.layers.0.{name}.weight"]
    folder = family.write_checkpoint(tmp_path / "m", tensors)
    assert "blk.2.ffn_up.weight" in [t.name for t in plan(folder).plan.tensors]
    without = plan(folder, mtp=False).plan
    assert "blk.2.ffn_up.weight" not in [t.name for t in without.tensors]
    assert {f.key: f.value for f in without.metadata}["fake.block_count"] == 2


def test_single_experts_are_written_together_when_the_last_is_met(family, plan, tmp_path):
    one = np.zeros((64, 64), np.float32)
    tensors = family.tensors_of(layers=1)
    tensors |= {f"model.layers.0.experts.{e}.{part}": one for e in range(3) for part in ("down", "gate")}
    folder = family.write_checkpoint(tmp_path / "m", tensors, layers=1, experts=3)
    made = plan(folder).plan.tensors
    assert [t.name for t in made] == [
        "token_embd.weight",
        "blk.0.ffn_down_exps.weight",
        "blk.0.ffn_gate_exps.weight",
        "blk.0.attn_norm.weight",
        "blk.0.ffn_up.weight",
    ]
    assert made[1].shape == (3, 64, 64)
    assert made[1].inputs == tuple(f"model.layers.0.experts.{e}.down" for e in range(3))


def test_shapes_are_checked_before_anything_is_written(family, plan, tmp_path):
    tensors = family.tensors_of()
    tensors["model.layers.1.up.weight"] = np.zeros((64, 32), np.float32)
    with pytest.raises(TensorMismatchError) as caught:
        plan(family.write_checkpoint(tmp_path / "m", tensors))
    assert "blk.1.ffn_up.weight, made from model.layers.1.up.weight: shape (64, 32), expected (64, 64)" in str(
        caught.value
    )


def test_dtypes_without_plain_values_are_refused(family, plan, tmp_path):
    tensors = family.tensors_of()
    tensors["model.layers.1.up.weight"] = np.zeros((64, 64), np.uint8)
    with pytest.raises(TensorMismatchError, match="F8_E4M3"):
        plan(family.write_checkpoint(tmp_path / "m", tensors))


def test_a_type_that_nobody_encodes(family, plan, tmp_path):
    family.q5 = lambda recipe, tensors, facts, options: [TypeChoice(qtype="Q5_K", reason="because")] * len(tensors)
    recipe = Recipe(name="q5", ftype=1, default="Q5_K", policy="fake_family:q5", quantizes=True)
    with pytest.raises(UnknownNameError) as caught:
        plan(family.write_checkpoint(tmp_path / "m"), recipe)
    assert "recipe q5 gives token_embd.weight the type Q5_K (because); no codec 'Q5_K'" in caught.value.message


def test_a_policy_that_forgets_tensors(family, plan, tmp_path):
    family.short = lambda recipe, tensors, facts, options: []
    recipe = Recipe(name="short", ftype=1, default="F16", policy="fake_family:short", quantizes=True)
    with pytest.raises(ContractError, match="chose 0 types for 5 tensors"):
        plan(family.write_checkpoint(tmp_path / "m"), recipe)


def test_keys_written_twice(family, plan, tmp_path, monkeypatch):
    own = family.FakeHParams.metadata
    monkeypatch.setattr(family.FakeHParams, "metadata", lambda self: own(self) * 2)
    with pytest.raises(ContractError, match="write a key twice"):
        plan(family.write_checkpoint(tmp_path / "m"))


def test_families_that_nobody_provides(family, plan, tmp_path):
    folder = family.write_checkpoint(tmp_path / "m", architectures=["Qwen3_5ForCausalLM"])
    with pytest.raises(UnknownNameError) as caught:
        plan(folder)
    assert caught.value.hint == "pip install hf2q-arch-qwen35"


def test_a_checkpoint_without_a_tokenizer(family, plan, tmp_path):
    folder = family.write_checkpoint(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(MissingFileError, match=r"tokenizer\.json"):
        plan(folder)


def test_text_config_may_name_the_class(family, plan, tmp_path):
    folder = family.write_checkpoint(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["Wrapper"], "text_config": {"architectures": ["FakeForCausalLM"]}}
    (folder / "config.json").write_text(json.dumps(config))
    assert plan(folder).plan.arch == "fake"
