"""What config.json and the files beside it may say, and what is refused."""

import json

import pytest
from qwen3vl_checkpoints import IMAGES, VARIANTS, write

from hf2q.convert import convert
from hf2q.errors import ConfigError, TensorMismatchError
from hf2q.plugins import Plugins
from hf2q.types import TensorInfo
from hf2q_arch_qwen3vl.hf2q_contract import DENSE, MOE, TEXT, TOWER, VISION
from hf2q_arch_qwen3vl.hparams import Qwen3VLHParams
from hf2q_arch_qwen3vl.vision import TowerHParams

HEAD = TensorInfo(name="lm_head.weight", shape=(), dtype="BF16", file="f", offset=0, nbytes=0)


def text(config=DENSE, tensors=(), **changes):
    return Qwen3VLHParams.from_config({**config, "text_config": {**config["text_config"], **changes}}, tensors)


def tower(config=TOWER, **changes):
    return TowerHParams.from_config({**config, "vision_config": {**VISION, **changes}}, ())


def values(hparams):
    return {field.key: field.value for field in hparams.metadata()}


def without(mapping, *keys):
    return {key: value for key, value in mapping.items() if key not in keys}


def test_deepstack_is_counted():
    assert values(text())["qwen3vl.n_deepstack_layers"] == 2
    assert (
        values(text({**DENSE, "vision_config": {**VISION, "deepstack_visual_indexes": []}}))[
            "qwen3vl.n_deepstack_layers"
        ]
        == 0
    )
    # transformers' default, which the converter sees
    assert values(text(without(DENSE, "vision_config")))["qwen3vl.n_deepstack_layers"] == 3


def test_older_spellings_of_rope():
    rope = without(TEXT["rope_parameters"], "rope_theta")
    config = {**DENSE, "text_config": without(TEXT, "rope_parameters")}
    old = text(config, rope_scaling=rope, rope_theta=10000)
    assert old == text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "mrope_section"),
        ({"rope_parameters": {**TEXT["rope_parameters"], "rope_type": "dynamic"}}, "rope_type"),
        ({"rope_parameters": {**TEXT["rope_parameters"], "mrope_section": [0, 0]}}, "sections"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"num_key_value_heads": 4}, "multiple"),
        ({"head_dim": 15}, "even"),
    ],
)
def test_text_that_is_not_understood(changes, message):
    with pytest.raises(ConfigError, match=message):
        text(**changes)


@pytest.mark.parametrize("changes", [{"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}, {"norm_topk_prob": False}])
def test_mixtures_that_are_not_understood(changes):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        text(MOE, [HEAD], **changes)


def test_a_head_must_be_there_or_tied():
    with pytest.raises(TensorMismatchError, match="lm_head"):
        text({**DENSE, "tie_word_embeddings": False})
    assert text({**DENSE, "tie_word_embeddings": False}, [HEAD]) == text()


def test_yarn_is_written():
    rope = {**TEXT["rope_parameters"], "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
    found = values(text(rope_parameters=rope))
    assert found["qwen3vl.rope.scaling.type"] == "yarn"
    assert found["qwen3vl.rope.scaling.original_context_length"] == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"out_hidden_size": 47}, "out_hidden_size"),
        ({"hidden_act": "silu"}, "hidden_act"),
        ({"temporal_patch_size": 1}, "temporal_patch_size"),
        ({"in_channels": 1}, "in_channels"),
        ({"num_position_embeddings": 35}, "square"),
        ({"image_size": 25}, "image_size"),
        ({"num_heads": 5}, "divisor"),
        ({"deepstack_visual_indexes": [5]}, "deepstack"),
        ({"deepstack_visual_indexes": [-1]}, "deepstack"),
        ({"deepstack_visual_indexes": [1, 1]}, "deepstack"),
        ({"deepstack_visual_indexes": ["1"]}, "deepstack"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta"),
        ({"surprise": 3}, "surprise"),
    ],
)
def test_towers_that_are_not_understood(changes, message):
    with pytest.raises(ConfigError, match=message):
        tower(**changes)


def test_deepstack_layers_are_absolute():
    assert tower().layer_kinds == ("vision", "vision_tap_0", "vision", "vision_tap_1", "vision")
    assert values(tower())["clip.vision.is_deepstack_layers"] == (False, True, False, True, False)
    turned = tower(deepstack_visual_indexes=[3, 1])
    assert turned.layer_kinds == ("vision", "vision_tap_1", "vision", "vision_tap_0", "vision")


def test_a_config_without_deepstack():
    vision = without(VISION, "deepstack_visual_indexes")
    later = {**TOWER, "model_type": "qwen3_5", "vision_config": vision}
    assert TowerHParams.from_config(later, ()).taps == ()
    with pytest.raises(ConfigError, match="deepstack"):  # Qwen 3-VL's default of [8, 16, 24] in a tower of 5 blocks
        TowerHParams.from_config({**TOWER, "vision_config": vision}, ())
    deep = {**TOWER, "vision_config": {**vision, "depth": 27}}
    assert TowerHParams.from_config(deep, ()).taps == (8, 16, 24)


def test_the_epsilon_is_the_text_models(caplog):
    config = {**TOWER, "text_config": {**TEXT, "rms_norm_eps": 1e-5}}
    assert values(tower(config))["clip.vision.attention.layer_norm_epsilon"] == 1e-5
    assert "1e-05" in caplog.text


@pytest.mark.parametrize("key", ["image_mean", "image_std"])
@pytest.mark.parametrize("value", [None, [0.5, 0.5], [0.5, 0.5, "x"], 3, [0.5, 0.5, -1]])
def test_the_normalisation_is_needed(key, value):
    with pytest.raises(ConfigError, match=key):
        tower({**TOWER, "preprocessor_config": {**IMAGES, key: value}})


@pytest.mark.parametrize("name", ["Qwen3-VL-Reranker-2B", "card"])
def test_rerankers_are_refused(tmp_path, name):
    arch, config = VARIANTS["dense"]
    source = write(tmp_path / name, arch, config, tower=False)
    if name == "card":
        (source / "README.md").write_text("# Qwen3-VL-Reranker\n")
    with pytest.raises(ConfigError, match="reranker"):
        convert(source, "f16", tmp_path / "x.gguf", plugins=Plugins.load())


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode": "mean"}, "Dense"),
        (["Transformer", "Pooling"], {"pooling_mode_max_tokens": True}, "max"),
        (["Transformer", "Pooling"], {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "and"),
    ],
)
def test_vectors_that_gguf_cannot_express(tmp_path, modules, pooling, message):
    arch, config = VARIANTS["dense"]
    listed = [{"type": f"s.{kind}", "path": f"{n}_{kind}" if n else ""} for n, kind in enumerate(modules)]
    extra = {"modules.json": listed, "1_Pooling/config.json": pooling}
    source = write(tmp_path / "Tiny-VL", arch, config, tower=False, extra=extra)
    with pytest.raises(ConfigError, match=message):
        convert(source, "f16", tmp_path / "x.gguf", plugins=Plugins.load())


def test_what_the_command_tells(tmp_path, capsys):
    from hf2q.cli import main

    arch, config = VARIANTS["dense"]
    source = write(tmp_path / "Tiny-VL", arch, config)
    words = ["convert", str(source), "--quant", "f16", "--emit-vision-tower", "-o", str(tmp_path / "x.gguf")]
    assert main([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "v.deepstack.3.fc1.weight" in shown
    assert str(tmp_path / "mmproj-x.gguf") in shown
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["projector"]["output"] == str(tmp_path / "mmproj-x.gguf")
    assert told["projector"]["arch"] == "clip"
    assert (tmp_path / "mmproj-x.gguf").stat().st_size == told["projector"]["file_bytes"]
