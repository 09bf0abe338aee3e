"""Folders made of GGUF files: the same values in mlx-lm's order, bit for bit where nothing was decoded."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import deserialize

from hf2q.convert import convert
from hf2q.errors import ConfigError, MissingFileError, UsageError
from hf2q.testing.fixtures import require_fixture
from hf2q_writer_mlx.affine import unpack_codes

QWEN = Path(__file__).parents[3] / "tests" / "data" / "qwen3_5"
FAMILIES = ["qwen3_5", "qwen3_5_moe", "gemma4", "gemma4_moe"]


def source(name):
    return QWEN if name == "qwen3_5" else require_fixture(name)


def values(folder):
    """Every tensor as float32: quantized ones are scale * code + bias, evaluated in float32."""
    stored = {}
    for path in folder.glob("model*.safetensors"):
        stored |= dict(deserialize(path.read_bytes()))
    quantization = json.loads((folder / "config.json").read_text()).get("quantization", {})
    found = {}
    for name, one in stored.items():
        module = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        shape, data = one["shape"], np.frombuffer(bytes(one["data"]), np.uint8)
        if one["dtype"] != "U32":
            wide = {"F32": lambda d: d.view(np.float32), "F16": lambda d: d.view(np.float16).astype(np.float32)}
            bf16 = lambda d: (d.view(np.uint16).astype(np.uint32) << 16).view(np.float32)  # noqa: E731
            found[name] = wide.get(one["dtype"], bf16)(data).reshape(shape)
            continue
        own = quantization.get(module, quantization)
        assert own["group_size"] == 32
        scales, biases = (
            np.frombuffer(bytes(stored[f"{module}.{part}"]["data"]), np.float32).reshape(-1, 1)
            for part in ("scales", "biases")
        )
        assert stored[f"{module}.scales"]["dtype"] == "F32"
        codes = unpack_codes(data.reshape(-1, 4 * own["bits"]), own["bits"]).astype(np.float32)
        found[name] = (scales * codes + biases).reshape(*shape[:-1], -1)
    return found


def made(tmp_path, name, quant):
    """A GGUF file with the files of its checkpoint beside it."""
    path = tmp_path / "gguf" / f"{quant}.gguf"
    path.parent.mkdir(exist_ok=True)
    convert(source(name), quant, path, receipt=False, force=True)
    return path


@pytest.mark.parametrize("name", FAMILIES)
def test_values_and_order_are_those_of_the_checkpoint(name, tmp_path):
    convert(source(name), "f32", tmp_path / "direct", format="mlx", receipt=False)
    convert(made(tmp_path, name, "f32"), "f32", tmp_path / "back", format="mlx", receipt=False)
    direct, back = values(tmp_path / "direct"), values(tmp_path / "back")
    assert {key: one.shape for key, one in back.items()} == {key: one.shape for key, one in direct.items()}
    for key, one in direct.items():
        if "norm" in key:  # mlx-lm adds the one in the checkpoint's type, the converter in float32
            np.testing.assert_allclose(back[key], one, rtol=2**-8, atol=2**-8)
        elif key.endswith("A_log"):
            np.testing.assert_allclose(back[key], one, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(back[key], one, err_msg=key)


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        *((name, "q4_k_m") for name in FAMILIES),
        *(("qwen3_5", quant) for quant in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1")),
    ],
)
def test_repacking_loses_nothing(name, quant, tmp_path):
    path = made(tmp_path, name, quant)
    repacked = convert(path, "auto", tmp_path / "repacked", format="mlx", receipt=False)
    convert(path, "f32", tmp_path / "decoded", format="mlx", receipt=False)
    ours, decoded = values(tmp_path / "repacked"), values(tmp_path / "decoded")
    assert ours.keys() == decoded.keys()
    for key, one in decoded.items():
        np.testing.assert_array_equal(ours[key], one, err_msg=key)
    kinds = {tensor.qtype for tensor in repacked.plan.tensors if tensor.copied}
    assert kinds
    assert all(kind.endswith("_G32_F32") for kind in kinds)


def test_what_has_no_form_is_told(tmp_path, caplog):
    path = made(tmp_path, "qwen3_5", "q6_k")
    with caplog.at_level(logging.WARNING):
        summary = convert(path, "auto", tmp_path / "out", format="mlx", receipt=False)
    assert any("Q6_K" in record.message and "F32" in record.message for record in caplog.records)
    reasons = {tensor.reason for tensor in summary.plan.tensors}
    assert "decoded: Q6_K has no form in MLX" in reasons
    assert "the logarithm of what the file has: rounded, not exact" in reasons


def test_other_bits_are_refused(tmp_path):
    path = made(tmp_path, "qwen3_5", "q8_0")
    with pytest.raises(UsageError, match="--quant 4bit-g64 quantizes"):
        convert(path, "4bit", tmp_path / "out", format="mlx")


def test_a_file_alone_is_refused(tmp_path):
    path = made(tmp_path, "qwen3_5", "q8_0")
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(path, alone)
    with pytest.raises(MissingFileError, match=r"needs config\.json beside"):
        convert(alone / path.name, "auto", tmp_path / "out", format="mlx")


@pytest.mark.parametrize(
    ("key", "value", "told"), [("rms_norm_eps", 1e-5, "epsilon"), ("num_attention_heads", 8, "head_count")]
)
def test_a_config_of_another_model_is_refused(key, value, told, tmp_path):
    path = made(tmp_path, "qwen3_5", "q8_0")
    config = json.loads((path.parent / "config.json").read_text())
    config["text_config"][key] = value
    (path.parent / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=told):
        convert(path, "auto", tmp_path / "out", format="mlx")
    assert not (tmp_path / "out").exists()


def test_the_receipt_names_the_file_and_what_lay_beside_it(tmp_path):
    path = made(tmp_path, "qwen3_5", "q8_0")
    summary = convert(path, "auto", tmp_path / "out", format="mlx")
    receipt = json.loads(Path(summary.receipt).read_text())
    assert receipt["source"]["kind"] == "gguf"
    assert {"q8_0.gguf", "config.json", "tokenizer.json"} <= {file["path"] for file in receipt["source"]["files"]}
