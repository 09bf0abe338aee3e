"""What config.json may say about weights that are quantized already."""

import json

import pytest

from hf2q.convert.quantized import NAMES, read_quantization
from hf2q.errors import ConfigError


def compressed(**weights):
    group = {"type": "float", "num_bits": 8, "symmetric": True, "strategy": "channel", **weights}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"weights": group}},
    }


@pytest.mark.parametrize(
    ("found", "method", "block"),
    [
        ({"quant_method": "fp8"}, "fp8", None),
        (
            {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 64], "scale_fmt": "ue8m0"},
            "fp8",
            (128, 64),
        ),
        (compressed(), "compressed-tensors", None),
        (compressed(strategy="block", block_structure=[128, 128]), "compressed-tensors", (128, 128)),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt", None),
    ],
)
def test_scaled_floats_are_taken(tmp_path, found, method, block):
    for config in ({"quantization_config": found}, {"text_config": {"quantization_config": found}}):
        stated = read_quantization(tmp_path, config)
        assert (stated.method, stated.block) == (method, block)


@pytest.mark.parametrize("method", sorted(NAMES))
def test_other_methods_are_refused_by_name(tmp_path, method):
    with pytest.raises(ConfigError, match="quantized already") as refusal:
        read_quantization(tmp_path, {"quantization_config": {"quant_method": method, "bits": 4}})
    assert f"quantization_config ({NAMES[method]})" in refusal.value.message
    assert "unquantized" in refusal.value.hint


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quantization": {"group_size": 64, "bits": 4}}, "MLX, 4 bits"),
        ({"quantization_config": {"group_size": 32, "bits": 8, "mode": "affine"}}, "MLX, 8 bits"),
        ({"quantization_config": {"quant_method": "something-new"}}, "something-new"),
        ({"quantization_config": {}}, "None"),
        ({"quantization_config": "int4"}, "'int4'"),
        ({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}, "FP8 e5m2"),
        ({"quantization_config": {**compressed(), "format": "pack-quantized"}}, "compressed-tensors pack-quantized"),
        ({"quantization_config": compressed(num_bits=4)}, "compressed-tensors"),
        ({"quantization_config": compressed(symmetric=False)}, "compressed-tensors"),
        ({"quantization_config": {**compressed(), "sparsity_config": {"format": "dense"}}}, "sparsity_config"),
        ({"quantization_config": {**compressed(), "config_groups": {}}}, "compressed-tensors"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "ModelOpt NVFP4"),
        ({"text_config": {"compression_config": {"quant_method": "gptq"}}}, "text_config.compression_config (GPTQ)"),
    ],
)
def test_what_else_is_refused(tmp_path, config, named):
    with pytest.raises(ConfigError, match="quantized already") as refusal:
        read_quantization(tmp_path, config)
    assert named in refusal.value.message


@pytest.mark.parametrize("size", [128, [128], [0, 128], [128.0, 128], [True, 128]])
def test_a_block_size_must_be_two_sizes(tmp_path, size):
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": size}}
    with pytest.raises(ConfigError, match="two sizes"):
        read_quantization(tmp_path, config)


def test_the_file_of_modelopt(tmp_path):
    file = tmp_path / "hf_quant_config.json"
    assert read_quantization(tmp_path, {"quantization_config": None}) is None
    file.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}))
    assert read_quantization(tmp_path, {}).method == "modelopt"
    for text in ('{"quantization": {"quant_algo": "NVFP4"}}', "[]", "{}"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"hf_quant_config\.json"):
            read_quantization(tmp_path, {})
