"""Folders against what mlx_lm.convert wrote of the same checkpoints, and what MLX makes of them."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import deserialize

from hf2q.cli import main
from hf2q.convert import convert
from hf2q.errors import EncodeError, Hf2qError, MissingFileError, UnknownNameError, UsageError
from hf2q.testing.fixtures import require_fixture
from hf2q.types import ModelFacts, PolicyOptions, TensorChoiceInput
from hf2q_writer_mlx.codec import affine_codec, affine_name
from hf2q_writer_mlx.recipes import choose, find
from hf2q_writer_mlx.shards import shards_of
from hf2q_writer_mlx.writer import MlxWriter

QWEN = Path(__file__).parents[3] / "tests" / "data" / "qwen3_5"
GOLDEN = json.loads((Path(__file__).parent / "data" / "mlx_lm.golden.json").read_text())
CASES = [(name, quant) for name in ("qwen3_5", "qwen3_5_moe", "gemma4", "gemma4_moe") for quant in GOLDEN[name]]


def tensors(folder):
    found = {}
    for path in sorted(folder.glob("model*.safetensors")):
        found |= dict(deserialize(path.read_bytes()))
    return found


def digests(folder):
    return {
        name: f"{one['dtype']} {'x'.join(map(str, one['shape']))} {hashlib.sha256(one['data']).hexdigest()[:16]}"
        for name, one in sorted(tensors(folder).items())
    }


def source(name):
    return QWEN if name == "qwen3_5" else require_fixture(name)


@pytest.mark.parametrize(("name", "quant"), CASES, ids=lambda value: value)
def test_weights_are_those_of_mlx_lm(name, quant, tmp_path):
    convert(source(name), quant, tmp_path / "out", format="mlx", receipt=False)
    found, golden = digests(tmp_path / "out"), GOLDEN[name][quant]
    if isinstance(golden, dict):
        assert found == golden
    else:
        assert hashlib.sha256(json.dumps(found).encode()).hexdigest() == golden


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """The folder of 4 bits of the small Qwen."""
    folder = tmp_path_factory.mktemp("mlx") / "four"
    return convert(QWEN, "4bit", folder, format="mlx"), folder


def test_the_folder_holds_what_mlx_lm_looks_for(four):
    summary, folder = four
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization"] == config["quantization_config"] == {"group_size": 64, "bits": 4, "mode": "affine"}
    assert "vision_config" not in config
    assert config["text_config"] == json.loads((QWEN / "config.json").read_text())["text_config"]
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (folder / name).read_bytes() == (QWEN / name).read_bytes()
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == dict.fromkeys(sorted(tensors(folder)), "model.safetensors")
    assert index["metadata"]["total_size"] == sum(len(one["data"]) for one in tensors(folder).values())
    assert summary.output == str(folder)
    reasons = {reason for _, reason in summary.plan.ignored}
    assert reasons == {"vision tower: a file of its own", "MTP, which mlx-lm does not run"}


def test_the_receipt_lists_every_file(four):
    summary, folder = four
    receipt = json.loads(Path(summary.receipt).read_text())
    assert {file["name"] for file in receipt["outputs"]} == {p.name for p in folder.iterdir()} - {
        Path(summary.receipt).name
    }
    for file in receipt["outputs"]:
        assert hashlib.sha256((folder / file["name"]).read_bytes()).hexdigest() == file["sha256"]
    assert receipt["recipe"]["name"] == "4bit-g64"


def test_routers_have_entries_of_their_own(tmp_path):
    convert(require_fixture("gemma4_moe"), "4bit", tmp_path / "out", format="mlx")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization"] == GOLDEN["routers"]
    assert config["vocab_size"] == 2048


@pytest.mark.mlx
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_the_arithmetic_is_that_of_mlx(bits, group):
    mx = pytest.importorskip("mlx.core")
    random = np.random.RandomState(bits * group)
    x = (random.standard_normal((40, 256)) * random.choice([1e-6, 0.02, 1, 50], (40, 1))).astype(np.float32)
    x[3], x[4], x[5], x[6] = 0, 1, -2, np.abs(x[6])
    for dtype, kind in ((mx.bfloat16, "BF16"), (mx.float16, "F16"), (mx.float32, "F32")):
        weights = mx.array(x).astype(dtype)
        values = np.array(weights.astype(mx.float32))
        codec = affine_codec(affine_name(bits, group, kind))
        data = codec.encode(values)
        parts = mx.quantize(weights, group, bits, stream=mx.cpu)
        ends = np.cumsum([group * bits // 8, *[(codec.type_size - group * bits // 8) // 2] * 2])
        blocks = np.split(data.reshape(-1, codec.type_size), ends[:-1], axis=1)
        for ours, theirs in zip(blocks, parts, strict=True):
            assert ours.tobytes() == np.array(theirs.view(mx.uint8)).tobytes()
        back = mx.dequantize(*(part.astype(mx.float32) if i else part for i, part in enumerate(parts)), group, bits)
        np.testing.assert_allclose(codec.decode(data), np.array(back), rtol=1e-6, atol=1e-6)


def test_rows_that_no_group_divides_are_left_as_they_are(tmp_path):
    summary = convert(QWEN, "4bit-g128", tmp_path / "out", format="mlx", dry_run=True)
    assert not summary.fallbacks
    odd = TensorChoiceInput(name="model.layers.0.mlp.up_proj.weight", shape=(8, 96), qtype="BF16")
    (choice,) = choose(find("4bit"), [odd], ModelFacts(arch="x", n_layer=1), PolicyOptions())
    assert (choice.qtype, choice.fallback_from) == ("BF16", "MLX4_G64_BF16")
    assert choice.reason == "96 columns are no multiple of 64"


def test_fallbacks_are_told_and_can_be_refused(tmp_path):
    source = require_fixture("gemma4")  # a width of 64
    summary = convert(source, "4bit-g128", tmp_path / "out", format="mlx", dry_run=True)
    assert {one.shape[-1] for one in summary.fallbacks} == {64}
    with pytest.raises(UsageError, match="do not fit 4bit-g128"):
        convert(source, "4bit-g128", tmp_path / "out", format="mlx", no_fallback=True)


@pytest.mark.parametrize("name", ["7bit", "4bit-g16", "q4_k_m", "mixed-2-4", "4bit-g64-g32", ""])
def test_other_quants_are_refused(name):
    with pytest.raises(UnknownNameError, match=r"no quant .* for --format mlx"):
        find(name)


def test_quants_of_mlx_are_not_of_gguf(tmp_path):
    with pytest.raises(UnknownNameError, match="4bit"):
        convert(QWEN, "4bit", tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"via": "f16"}, "--via f16"),
        ({"mtp": False}, "--no-mtp"),
        ({"mmproj": True}, "--mmproj"),
        ({"pre": "qwen35"}, "--pre qwen35"),
        ({"split_max_size": 1 << 20}, "--split-max-size"),
        ({"sidecars": False}, "--no-sidecars"),
        ({"allow_requantize": True}, "--allow-requantize"),
    ],
)
def test_options_of_gguf_are_refused(options, flag, tmp_path):
    with pytest.raises(UsageError, match=f"{flag} cannot be used with --format mlx"):
        convert(QWEN, "4bit", tmp_path / "out", format="mlx", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="onnx"):
        convert(QWEN, "4bit", tmp_path / "out", format="onnx")


def test_only_a_folder_of_this_kind_is_replaced(tmp_path):
    out = tmp_path / "out"
    convert(QWEN, "4bit", out, format="mlx")
    with pytest.raises(UsageError, match="exists"):
        convert(QWEN, "8bit", out, format="mlx")
    convert(QWEN, "8bit", out, format="mlx", force=True)
    assert json.loads((out / "config.json").read_text())["quantization"]["bits"] == 8
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        convert(QWEN, "4bit", out, format="mlx", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_source_is_never_replaced(tmp_path):
    with pytest.raises(UsageError, match="holds the source"):
        convert(QWEN, "4bit", QWEN, format="mlx", force=True)


def test_nothing_is_left_of_a_conversion_that_fails(tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in QWEN.iterdir():
        if path.name != "tokenizer.json":
            (copy / path.name).symlink_to(path)
    with pytest.raises(Hf2qError) as error:
        convert(copy, "4bit", tmp_path / "out", format="mlx")
    assert isinstance(error.value, MissingFileError)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_range_that_scales_cannot_hold_is_refused():
    x = np.zeros((1, 64), np.float32)
    x[0, 0] = 1e6
    with pytest.raises(EncodeError, match="row 5"):
        affine_codec("MLX4_G64_F16").encode(x, name="w", first_row=5)


def test_several_files(tmp_path, four):
    plan = four[0].plan
    writer = MlxWriter(str(tmp_path / "out"), plan, limit=1 << 20)
    for tensor in plan.tensors:
        writer.write(tensor.name, np.zeros(tensor.nbytes, np.uint8))
    writer.close()
    shards = shards_of(plan, 1 << 20)
    assert len(shards) > 2
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {shard.file for shard in shards}
    assert set(tensors(tmp_path / "out")) == set(index["weight_map"])


def test_experts_that_come_one_by_one_are_stacked(tmp_path):
    """The same weights as with packed experts, for layouts that checkpoints of fine-tunes have."""
    packed = require_fixture("qwen3_5_moe")
    single = tmp_path / "single"
    single.mkdir()
    for path in packed.iterdir():
        if path.suffix in (".json", ".jinja") and "index" not in path.name:
            shutil.copy(path, single)
    found = {}
    for path in packed.glob("*.safetensors"):
        found |= dict(deserialize(path.read_bytes()))
    for name in [name for name in found if name.endswith((".experts.gate_up_proj", ".experts.down_proj"))]:
        one = found.pop(name)
        experts, rows, columns = one["shape"]
        data = np.frombuffer(bytes(one["data"]), np.uint16).reshape(experts, rows, columns)
        prefix, _, kind = name.rpartition(".")
        halves = {"gate_proj": data[:, : rows // 2], "up_proj": data[:, rows // 2 :]}
        for part, values in halves.items() if kind == "gate_up_proj" else [("down_proj", data)]:
            for expert, matrix in enumerate(values):
                found[f"{prefix}.{expert}.{part}.weight"] = {
                    "dtype": one["dtype"],
                    "shape": list(matrix.shape),
                    "data": matrix.tobytes(),
                }
    write_checkpoint(single / "model.safetensors", found)
    convert(single, "4bit", tmp_path / "out", format="mlx")
    assert digests(tmp_path / "out") == GOLDEN["qwen3_5_moe"]["4bit-g64"]


def write_checkpoint(path, found):
    """A safetensors file."""
    header, at = {}, 0
    for name, one in found.items():
        header[name] = {
            "dtype": one["dtype"],
            "shape": one["shape"],
            "data_offsets": [at, at + len(one["data"])],
        }
        at += len(one["data"])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(bytes(one["data"]) for one in found.values()))


def test_the_command_line(tmp_path, capsys):
    assert (
        main(["convert", str(QWEN), "--format", "mlx", "--quant", "8bit-g32", "-o", str(tmp_path / "m"), "--json"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["output"] == str(tmp_path / "m")
    assert told["quant"] == "8bit-g32"
    assert {Path(file).name for file in told["files"]} == {
        path.name for path in (tmp_path / "m").iterdir() if not path.name.endswith(".receipt.json")
    }
    assert main(["convert", str(QWEN), "--format", "mlx", "--quant", "bf16", "--imatrix-corpus", "x"]) != 0
    assert "--imatrix-corpus cannot be used with --format mlx" in capsys.readouterr().err
