"""``--quant auto``, families with a mix of their own, and what comes before quantization of scaled weights."""

import importlib.util
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import numpy as np
import pytest

from hf2q.convert import convert
from hf2q.convert.metadata import default_name
from hf2q.convert.names import find_recipe
from hf2q.convert.plan import make_plan
from hf2q.convert.scales import mxfp4_blocks
from hf2q.convert.source import open_source
from hf2q.errors import ContractError, UsageError
from hf2q.formats.gguf import open_gguf
from hf2q.formats.small_floats import e4m3
from hf2q.plugins import Plugins

DATA = Path(__file__).parent / "data"


def module(name, monkeypatch):
    spec = importlib.util.spec_from_file_location(name, DATA / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, found)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def family(monkeypatch):
    return module("fake_family", monkeypatch)


@pytest.fixture
def raw(monkeypatch):
    return module("raw_safetensors", monkeypatch)


@pytest.fixture
def plugins(family):
    def load():
        points = [("builtin", "hf2q.builtin"), ("fake", "fake_family")]
        return Plugins.load(strict=True, entry_points=[EntryPoint(n, v, "hf2q") for n, v in points])

    return load


@pytest.fixture
def plan(plugins):
    def make(folder, recipe="auto", **options):
        loaded = plugins()
        return make_plan(open_source(str(folder)), find_recipe(loaded, recipe), loaded, **options).plan

    return make


def values(plan):
    return {field.key: field.value for field in plan.metadata}


@pytest.mark.parametrize(
    ("dtype", "name", "ftype"), [(np.uint16, "bf16", 32), (np.float16, "f16", 1), (np.float32, "f16", 1)]
)
def test_auto_is_the_type_of_the_checkpoint(family, plan, tmp_path, dtype, name, ftype):
    folder = family.write_checkpoint(tmp_path / "small-model", family.tensors_of(dtype=dtype))
    made = plan(folder)
    assert made == plan(folder, name)
    assert (made.recipe, made.via, values(made)["general.file_type"]) == (name, name, ftype)
    assert default_name(made.metadata, made.recipe) == f"Small-Model-26K-{name.upper()}"


def test_auto_follows_no_via_and_takes_no_gguf(family, plan, plugins, tmp_path):
    folder = family.write_checkpoint(tmp_path / "m")
    with pytest.raises(UsageError, match="--quant auto is written directly; --via f32"):
        plan(folder, via="f32")
    with pytest.raises(UsageError, match="--via q8_0 is unknown"):
        plan(folder, via="q8_0")
    convert(folder, "auto", tmp_path / "m.gguf", plugins=plugins())
    with pytest.raises(UsageError, match="--quant auto cannot be used when the source is a GGUF file"):
        convert(tmp_path / "m.gguf", "auto", tmp_path / "n.gguf", plugins=plugins())


def own_type(spec, dtype):
    """A family's mix: FP4 as it is, F32 stays, one matrix has no type of its own."""
    return {"F4_E2M1": "MXFP4", "F32": "F32"}.get(dtype, "")


@pytest.fixture
def mixed(family):
    """The family with a mix, experts first, and a key that comes early."""
    family.own_type = own_type
    rules = tuple(
        msgspec.structs.replace(rule, early=1) if "_exps" in rule.name else rule for rule in family.CATALOG.rules
    )
    family.CATALOG = msgspec.structs.replace(family.CATALOG, rules=rules, auto="fake_family:own_type")
    entry = next(iter(family.hf2q_arch_entries()))
    family.ENTRY = msgspec.structs.replace(entry, first_keys=("tokenizer.ggml.pre",))
    family.hf2q_arch_entries = family.hookimpl(lambda: iter([family.ENTRY]))
    return family


def fp4_checkpoint(family, raw, folder):
    """Blocks of float16 with experts in FP4; returns the experts' blocks by name."""
    family.write_checkpoint(folder, experts=2)
    half = {name: ("F16", x.shape, x.tobytes()) for name, x in family.tensors_of(dtype=np.float16).items()}
    random, blocks = np.random.RandomState(0), {}
    for i in range(2):
        for part in ("down", "gate"):
            own = []
            for e in range(2):
                codes, scale = random.randint(0, 256, (64, 32)).astype(np.uint8), random.randint(120, 130, (64, 2))
                name = f"model.layers.{i}.experts.{e}.{part}"
                half[name] = raw.codes("I8", codes)
                half[f"{name}_scale"] = raw.codes("F8_E8M0", scale)
                own.append(mxfp4_blocks(codes, scale.astype(np.uint8)))
            blocks[f"blk.{i}.ffn_{part}_exps.weight"] = np.concatenate(own).tobytes()
    raw.write(folder / "model.safetensors", half)
    return blocks


def test_a_family_may_have_a_mix_of_its_own(mixed, raw, plan, plugins, tmp_path):
    folder = tmp_path / "small-model"
    blocks = fp4_checkpoint(mixed, raw, folder)
    made = plan(folder)
    assert [t.name for t in made.tensors][:5] == [*blocks, "token_embd.weight"]  # experts first, block by block
    assert {t.qtype for t in made.tensors if "_exps" in t.name} == {"MXFP4"}
    assert {t.qtype for t in made.tensors if "_exps" not in t.name} == {"F16", "F32"}
    assert all(t.copied == ("_exps" in t.name) for t in made.tensors)
    assert (made.recipe, values(made)["general.file_type"]) == ("mxfp4_moe", 38)
    assert [field.key for field in made.metadata][:2] == ["general.architecture", "tokenizer.ggml.pre"]
    assert default_name(made.metadata, made.recipe).endswith("-MXFP4_MOE")
    summary = convert(folder, "auto", tmp_path / "m.gguf", plugins=plugins(), threads=1)
    with open_gguf(summary.output) as file:
        for name, expected in blocks.items():
            assert file.rows(name).tobytes() == expected


def test_a_type_that_names_no_file_is_refused(mixed, raw, plan, tmp_path):
    mixed.own_type = lambda spec, dtype: "I32"
    with pytest.raises(ContractError, match="most weights of a file that is written as it is are I32"):
        plan(mixed.write_checkpoint(tmp_path / "m"))


def test_the_mix_comes_before_quantization_unless_weights_are_scaled(mixed, raw, plan, tmp_path):
    folder = mixed.write_checkpoint(tmp_path / "m", mixed.tensors_of(dtype=np.float16))
    mixed.own_type = lambda spec, dtype: "F32" if spec.name == "token_embd.weight" else ""
    made = plan(folder, "to-bf16")
    assert {t.name: t.via for t in made.tensors if len(t.shape) > 1} == {
        "token_embd.weight": "F32",
        "blk.0.ffn_up.weight": "F16",
        "blk.1.ffn_up.weight": "F16",
    }
    assert {t.via for t in plan(folder, "to-bf16", via="bf16").tensors if len(t.shape) > 1} == {"BF16"}
    fp4_checkpoint(mixed, raw, tmp_path / "scaled")
    scaled = plan(tmp_path / "scaled", "to-bf16")
    assert scaled.via == "f32"
    assert {t.via for t in scaled.tensors} == {"F32"}
    assert {t.via for t in plan(tmp_path / "scaled", "to-bf16", via="f16").tensors if len(t.shape) > 1} == {"F16"}


def test_fp8_of_any_family(family, raw, plan, plugins, tmp_path):
    folder = family.write_checkpoint(tmp_path / "m")
    arrays = family.tensors_of()
    codes = np.random.RandomState(1).randint(0, 127, (64, 64)).astype(np.uint8)
    scale = np.float32([[0.5, 1.5], [3, 0.75]])
    stored = {name: raw.f32(x) for name, x in arrays.items()}
    stored["model.layers.0.up.weight"] = raw.codes("F8_E4M3", codes)
    stored["model.layers.0.up.weight_scale_inv"] = raw.bf16(scale)
    stored["model.layers.0.up.input_scale"] = raw.f32([1.0])
    raw.write(folder / "model.safetensors", stored)
    # the scale is the first 16-bit matrix that the converter meets
    assert plan(folder).recipe == "bf16"
    assert plan(folder).ignored == (
        ("model.layers.0.up.input_scale", "scale of activations, which are not quantized here"),
    )
    summary = convert(folder, "f32", tmp_path / "m.gguf", plugins=plugins(), threads=1)
    expected = e4m3()[codes] * np.repeat(np.repeat(scale, 32, axis=0), 32, axis=1)
    with open_gguf(summary.output) as file:
        assert np.array_equal(file.rows("blk.0.ffn_up.weight").view(np.float32).reshape(64, 64), expected)
