"""GGUF files as a source: what is copied, what is changed, what is refused. With the types that core has."""

import importlib.util
import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from hf2q.convert import convert
from hf2q.errors import (
    EncodeError,
    FormatError,
    LoadError,
    SourceError,
    TensorMismatchError,
    UnknownNameError,
    UsageError,
)
from hf2q.formats.gguf import GgufWriter, open_gguf
from hf2q.formats.gguf.layout import plan_offsets
from hf2q.formats.imatrix import Entry, Imatrix, write_imatrix
from hf2q.plugins import Plugins
from hf2q.types import MetadataField, Plan, PolicyOptions, TensorPlan, ValueType

BARE = {"provenance": False, "sidecars": False, "receipt": False}
"""Nothing but llama.cpp's file; what comes besides has tests of its own."""


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


KEYS = (
    MetadataField.string("general.architecture", "strange"),
    MetadataField.u32("general.file_type", 7),
    MetadataField.u32("strange.block_count", 2),
    MetadataField.array("strange.sizes", ValueType.INT16, [1, -2]),
    MetadataField.u32("general.quantization_version", 2),
    MetadataField.string("quantize.imatrix.file", "old"),
    MetadataField.array("tokenizer.ggml.tokens", ValueType.STRING, ["a", "ü"]),
)


def write_gguf(path, arrays, keys=KEYS, qtypes=None):
    """Arrays of float32 or float16, or bytes with their shape and type in `qtypes`."""
    described = {}
    for name, x in arrays.items():
        shape, qtype = (qtypes or {}).get(name, (x.shape, "F16" if x.dtype == np.float16 else "F32"))
        described[name] = (shape, qtype, np.ascontiguousarray(x).reshape(-1).view(np.uint8))
    offsets = plan_offsets(data.nbytes for _, _, data in described.values())
    tensors = tuple(
        TensorPlan(name=n, shape=s, qtype=q, via=q, reason="", nbytes=d.nbytes, offset=at, inputs=())
        for (n, (s, q, d)), at in zip(described.items(), offsets, strict=True)
    )
    writer = GgufWriter(str(path), Plan(arch="", recipe="", via="", metadata=keys, tensors=tensors))
    for name, (_, _, data) in described.items():
        writer.write(name, data)
    writer.close()
    return path


@pytest.fixture
def arrays():
    rng = np.random.default_rng(3)
    return {
        "blk.1.ffn_up.weight": rng.standard_normal((8, 64)).astype(np.float32),
        "blk.0.attn_norm.weight": rng.standard_normal(64).astype(np.float32),
        "token_embd.weight": rng.standard_normal((16, 64)).astype(np.float16),
        "blk.0.ffn_up.weight": rng.standard_normal((8, 64)).astype(np.float32),
        "blk.0.ffn_gate_inp.weight": rng.standard_normal((4, 64)).astype(np.float32),
    }


@pytest.fixture
def run(plugins, tmp_path):
    def make(source, recipe="f16", output="out.gguf", **options):
        return convert(source, recipe, tmp_path / output, plugins=plugins, **BARE | options)

    return make


def test_order_keys_and_values(arrays, run, tmp_path):
    made = run(write_gguf(tmp_path / "in.gguf", arrays))
    assert [(t.name, t.qtype, t.copied) for t in made.plan.tensors] == [
        ("token_embd.weight", "F16", True),
        ("blk.0.attn_norm.weight", "F32", True),
        ("blk.0.ffn_gate_inp.weight", "F32", True),
        ("blk.0.ffn_up.weight", "F16", False),
        ("blk.1.ffn_up.weight", "F16", False),
    ]
    with open_gguf(made.output) as file:
        last = ["general.quantization_version", "general.file_type"]
        assert list(file.keys_in_order) == [f.key for f in KEYS if f.key not in last] + last
        assert all(file.field(f.key) == f for f in KEYS if f.key != "general.file_type")
        assert file.field("general.file_type") == MetadataField.u32("general.file_type", 1)
        for tensor in made.plan.tensors:
            expected = arrays[tensor.name].astype(np.float16) if not tensor.copied else arrays[tensor.name]
            assert np.array(file.rows(tensor.name)).tobytes() == expected.tobytes()


def test_any_arch_will_do_and_any_number_of_threads(arrays, run, tmp_path, monkeypatch):
    source = write_gguf(tmp_path / "in.gguf", arrays)
    first = Path(run(source, "bf16", "1.gguf", threads=1).output).read_bytes()
    monkeypatch.setattr("hf2q.convert.pipeline.PIECE", 100)
    assert Path(run(source, "bf16", "2.gguf", threads=4).output).read_bytes() == first


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"via": "f16"}, "--via f16"),
        ({"mtp": False}, "--no-mtp"),
        ({"pre": "qwen2"}, "--pre qwen2"),
        ({"via": "f32", "mtp": False}, "--via f32 and --no-mtp"),
    ],
)
def test_flags_for_checkpoints(arrays, run, tmp_path, options, words):
    with pytest.raises(UsageError, match=f"{words} cannot be used when the source is a GGUF file"):
        run(write_gguf(tmp_path / "in.gguf", arrays), **options)


def test_flags_for_files(family, run, tmp_path):
    folder = family.write_checkpoint(tmp_path / "model")
    for options in ({"allow_requantize": True}, {"keep_split": True}):
        with pytest.raises(UsageError, match="cannot be used when the source is a checkpoint"):
            run(folder, **options)


@pytest.mark.parametrize("options", [PolicyOptions(pure=True), PolicyOptions(tensor_types=(("ffn", "F32"),))])
def test_options_that_a_float_recipe_cannot_follow(arrays, run, tmp_path, options):
    with pytest.raises(UsageError, match="gives every tensor the same type"):
        run(write_gguf(tmp_path / "in.gguf", arrays), options=options)


def test_quantized_tensors(arrays, run, tmp_path):
    arrays["blk.0.ffn_up.weight"] = np.zeros(8 * 2 * 34, np.uint8)
    qtypes = {"blk.0.ffn_up.weight": ((8, 64), "Q8_0")}
    source = write_gguf(tmp_path / "in.gguf", arrays, qtypes=qtypes)
    with pytest.raises(UsageError, match=r"1 tensors of the source are quantized already: blk\.0\.ffn_up\.weight"):
        run(source)
    with pytest.raises(UnknownNameError, match=r"blk\.0\.ffn_up\.weight is stored as Q8_0 and becomes F16") as caught:
        run(source, allow_requantize=True)
    assert "hf2q-quant-kquant" in caught.value.hint


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.attn_norm.weight", "blk.1.ffn_up.weight"])
def test_damaged_values_are_placed_copied_or_not(arrays, run, tmp_path, name):
    arrays[name].reshape(-1)[-1] = np.nan
    with pytest.raises(
        EncodeError, match=rf"in\.gguf.*{name}.* holds nan at row|{name}.* of .*in\.gguf holds nan at row"
    ):
        run(write_gguf(tmp_path / "in.gguf", arrays))
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_values_beyond_float16(arrays, run, tmp_path):
    arrays["blk.1.ffn_up.weight"][3, 4] = 1e6
    with pytest.raises(EncodeError, match="row 3, column 4, which F16 cannot hold"):
        run(write_gguf(tmp_path / "in.gguf", arrays))


def test_the_source_is_never_the_output(arrays, plugins, tmp_path):
    source = write_gguf(tmp_path / "in.gguf", arrays)
    before = source.read_bytes()
    os.link(source, tmp_path / "hard.gguf")
    for output in (source, tmp_path / "hard.gguf"):
        with pytest.raises(UsageError, match="a file of the source"):
            convert(source, "f16", output, force=True, plugins=plugins)
    assert source.read_bytes() == before
    other = tmp_path / "other.gguf"  # beside the source, but no part of it
    other.write_bytes(b"old")
    convert(source, "f16", other, force=True, plugins=plugins)


def test_a_source_that_changes_is_noticed(arrays, run, tmp_path):
    source = write_gguf(tmp_path / "in.gguf", arrays)

    def touch(plan, tensor, done):
        os.utime(source, ns=(1, 1))

    with pytest.raises(SourceError, match="changed while it was being read"):
        run(source, threads=1, progress=touch)


@pytest.mark.parametrize("size", [3, 20, 400])
def test_files_that_are_cut(arrays, run, tmp_path, size):
    source = write_gguf(tmp_path / "in.gguf", arrays)
    os.truncate(source, size)
    with pytest.raises(FormatError, match=r"in\.gguf"):
        run(source)


def test_files_that_are_no_model(arrays, run, tmp_path):
    with pytest.raises(FormatError, match=r"there is no key 'clip\.block_count', so this is no language model"):
        run(write_gguf(tmp_path / "p.gguf", arrays, (MetadataField.string("general.architecture", "clip"),)))
    with pytest.raises(FormatError, match=r"general\.architecture is absent"):
        run(write_gguf(tmp_path / "q.gguf", arrays, ()))
    with pytest.raises(SourceError, match="holds no tensors"):
        run(write_gguf(tmp_path / "r.gguf", {}))
    (tmp_path / "s.gguf").write_bytes(b"no such thing, and long enough")
    with pytest.raises(FormatError, match="not a GGUF file"):
        run(tmp_path / "s.gguf")


def test_splitting_and_joining(arrays, run, tmp_path):
    source = write_gguf(tmp_path / "in.gguf", arrays)
    whole = Path(run(source).output).read_bytes()
    split = run(source, output="s.gguf", split_max_tensors=2)
    assert [Path(path).name for path in split.files] == [f"s-0000{k}-of-00003.gguf" for k in (1, 2, 3)]
    assert split.output == split.files[0]
    assert split.nbytes == sum(Path(path).stat().st_size for path in split.files)
    assert Path(run(split.output, output="joined.gguf").output).read_bytes() == whole
    kept = run(split.output, output="k.gguf", keep_split=True)
    assert [Path(a).read_bytes() for a in kept.files] == [Path(b).read_bytes() for b in split.files]
    assert len(run(source, output="one.gguf", split_max_tensors=99).files) == 1
    assert (tmp_path / "one.gguf").read_bytes() == whole


def test_a_failure_in_a_later_shard_leaves_nothing(arrays, run, tmp_path):
    arrays["blk.1.ffn_up.weight"][0, 0] = np.inf  # in the last of three
    source = write_gguf(tmp_path / "in.gguf", arrays)
    with pytest.raises(EncodeError, match="inf"):
        run(source, output="s.gguf", split_max_tensors=2)
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_checkpoints_can_be_split(family, run, tmp_path):
    folder = family.write_checkpoint(tmp_path / "model")
    whole = Path(run(folder).output).read_bytes()
    split = run(folder, output="s.gguf", split_max_size=40_000)
    assert len(split.files) == 2
    with open_gguf(tmp_path / "out.gguf") as one:
        names = list(one.tensors)
    found = []
    for path in split.files:
        with open_gguf(path) as file:
            found += list(file.tensors)
    assert found == names
    assert len(whole) > 0


def test_an_existing_shard_needs_force_and_nothing_is_left(arrays, run, tmp_path):
    source = write_gguf(tmp_path / "in.gguf", arrays)
    (tmp_path / "s-00002-of-00003.gguf").write_bytes(b"old")
    with pytest.raises(UsageError, match=r"s-00002-of-00003\.gguf exists"):
        run(source, output="s.gguf", split_max_tensors=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf", "s-00002-of-00003.gguf"]
    run(source, output="s.gguf", split_max_tensors=2, force=True)


def test_shards_that_cannot_be_kept(arrays, run, tmp_path):
    source = write_gguf(tmp_path / "in.gguf", arrays)
    with pytest.raises(UsageError, match=r"in several files, and .* is one file"):
        run(source, keep_split=True)
    with pytest.raises(UsageError, match="contradict"):
        run(source, keep_split=True, split_max_tensors=2)


def test_importance_without_a_use(arrays, run, tmp_path):
    source, matrix = write_gguf(tmp_path / "in.gguf", arrays), tmp_path / "m.gguf"
    with pytest.raises(UsageError, match="--include-weights chooses entries of an importance matrix, and there is"):
        run(source, include_weights=["x"])
    entry = Entry(sums=np.ones((1, 64), np.float32), counts=np.array([1]))
    write_imatrix(matrix, Imatrix(entries={"blk.0.ffn_up.weight": entry}, chunk_size=1), "gguf")
    with pytest.raises(UsageError, match="--imatrix"):
        run(source, imatrix=matrix)


def test_importance_of_another_model(arrays, run, family, tmp_path):
    """With a recipe that quantizes as far as core can: to BF16."""
    folder, matrix = family.write_checkpoint(tmp_path / "model"), tmp_path / "m.gguf"

    def save(name, columns):
        entry = Entry(sums=np.ones((1, columns), np.float32), counts=np.array([1]))
        write_imatrix(matrix, Imatrix(entries={name: entry}, chunk_size=1), "gguf")

    save("blk.9.ffn_up.weight", 64)
    with pytest.raises(UsageError, match="knows none of the tensors that are encoded"):
        run(folder, "to-bf16", imatrix=matrix)
    entry = Entry(sums=np.ones((1, 64), np.float32), counts=np.array([1]))
    mixed = {"blk.0.ffn_up.weight": entry, "blk.9.ffn_up.weight": entry, "output.weight": entry}
    write_imatrix(matrix, Imatrix(entries=mixed, chunk_size=1), "gguf")
    with pytest.raises(UsageError, match=r"knows 1 tensors that the model does not have: blk\.9\.ffn_up\.weight"):
        run(folder, "to-bf16", imatrix=matrix)
    assert run(folder, "to-bf16", "other.gguf", imatrix=matrix, exclude_weights=("blk.9.",))
    save("blk.0.ffn_up.weight", 32)
    with pytest.raises(TensorMismatchError, match=r"importance of blk\.0\.ffn_up\.weight has 1 x 32 values"):
        run(folder, "to-bf16", imatrix=matrix)
    save("blk.0.ffn_up.weight", 64)
    made = run(folder, "to-bf16", imatrix=matrix)
    assert [f.key for f in made.plan.metadata][-2:] == ["quantize.imatrix.file", "quantize.imatrix.entries_count"]


@pytest.fixture
def known(tmp_path):
    """A file of the family `fake`, changed by `known(arrays -> None, **keys)`; dots of keys are double underscores."""
    rng = np.random.default_rng(5)
    blocks = [
        (f"blk.{i}.{name}", rng.standard_normal(shape).astype(np.float32))
        for i in range(2)
        for name, shape in (("ffn_up.weight", (64, 64)), ("attn_norm.weight", (64,)))
    ]
    arrays = {"token_embd.weight": rng.standard_normal((4, 64)).astype(np.float32), **dict(blocks)}
    numbers = {"fake.block_count": 2, "fake.embedding_length": 64}

    def write(change=lambda arrays: None, **keys):
        change(arrays)
        changed = {name: value for name, value in (numbers | keys).items() if value is not None}
        fields = (
            MetadataField.string("general.architecture", "fake"),
            *(MetadataField.u32(name, value) for name, value in changed.items()),
            MetadataField.array("tokenizer.ggml.tokens", ValueType.STRING, ["a", "b", "c", "d"]),
        )
        return write_gguf(tmp_path / "known.gguf", arrays, fields)

    return write


def test_whole_models_of_known_families_pass_without_a_word(known, run, caplog):
    run(known())
    assert not caplog.records


@pytest.mark.parametrize(
    ("change", "keys", "message"),
    [
        (lambda a: [a.pop(name) for name in list(a) if name.startswith("blk.1.")], {}, "block 1 has no tensors"),
        (lambda a: None, {"fake.block_count": 1}, "block_count is 1, but there are tensors of block 1"),
        (lambda a: None, {"fake.block_count": 0}, "block_count is 0, but there are tensors of block 1"),
        (lambda a: None, {"fake.block_count": 2**32 - 1}, "block_count is 4294967295, but block 2 has no tensors"),
    ],
    ids=["half", "too few", "none", "too many"],
)
def test_half_a_model_of_a_known_family_is_refused_as_when_it_is_loaded(known, run, tmp_path, change, keys, message):
    with pytest.raises(LoadError, match=rf"known\.gguf: fake\..*{message}"):
        run(known(change, **keys))
    assert [path.name for path in tmp_path.iterdir()] == ["known.gguf"]


@pytest.mark.parametrize(
    ("change", "keys", "message"),
    [
        (lambda a: a.pop("blk.0.ffn_up.weight"), {}, "1 tensors are missing: blk.0.ffn_up.weight"),
        (lambda a: a.update(odd=np.ones(3, np.float32)), {}, "1 tensors are not known to fake: odd"),
        (
            lambda a: a.update({"token_embd.weight": np.ones((8, 32), np.float32)}),
            {},
            "token_embd.weight is (8, 32), expected (4, 64)",
        ),
        (lambda a: None, {"fake.embedding_length": None}, "GGUF metadata lacks fake.embedding_length"),
    ],
    ids=["missing", "unknown", "shape", "key"],
)
def test_what_a_known_family_does_not_expect_is_told_and_converted(known, run, caplog, change, keys, message):
    source = known(change, **keys)
    made = run(source)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(f"{source}: hf2q cannot run it, nor what becomes of it: ")
    assert message in record.getMessage()
    with open_gguf(source) as old, open_gguf(made.output) as new:
        assert set(new.tensors) == set(old.tensors)


def test_errors_in_metadata_name_the_file(arrays, run, tmp_path):
    keys = tuple(MetadataField.string(f.key, "x") if f.key == "strange.block_count" else f for f in KEYS)
    with pytest.raises(SourceError, match=r"in\.gguf: strange\.block_count is 'x', expected a number"):
        run(write_gguf(tmp_path / "in.gguf", arrays, keys))
