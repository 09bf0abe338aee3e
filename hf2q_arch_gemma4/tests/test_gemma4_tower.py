"""Vision towers: what config.json may say, and what is refused."""

import pytest

from hf2q.convert import convert
from hf2q.errors import ConfigError, LoadError, TensorMismatchError
from hf2q.plugins import Plugins
from hf2q.types import TensorInfo
from hf2q_arch_gemma4.families import UNIFIED
from hf2q_arch_gemma4.hparams import Gemma4HParams
from hf2q_arch_gemma4.vision import Gemma4TowerHParams

IMAGES = {"image_mean": [0, 0.5, 1], "image_std": [1.0, 1.0, 0.5]}


def whole(dense, vision, **changes):
    return {"text_config": dense(architectures=None), "vision_config": vision, "preprocessor_config": IMAGES, **changes}


def read(config, names=()):
    tensors = [TensorInfo(name=name, shape=(), dtype="BF16", file="", offset=0, nbytes=0) for name in names]
    return Gemma4TowerHParams.from_config(config, tensors)


def test_defaults_are_those_of_transformers(dense):
    h = read(whole(dense, {}))
    assert (h.n_layer, h.n_embd, h.n_ff, h.n_head, h.patch_size, h.n_positions) == (16, 768, 3072, 12, 16, 10240)
    assert (h.n_text, h.image_mean, h.image_std) == (256, (0.0, 0.5, 1.0), (1.0, 1.0, 0.5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps"),
        ({"pooling_kernel_size": 2}, "pooling_kernel_size"),
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"num_key_value_heads": 1}, "num_key_value_heads"),
        ({"head_dim": 16}, "head_dim"),
        ({"num_attention_heads": 3}, "divide"),
        ({"rope_parameters": {"rope_theta": 10000.0}}, "rope_theta"),
        ({"attention_bias": True}, "attention_bias"),
        ({"a_new_key": 1}, "a_new_key"),
    ],
)
def test_what_readers_could_not_know_is_refused(dense, tower, changes, message):
    with pytest.raises(ConfigError, match=message):
        read(whole(dense, tower(**changes)))


@pytest.mark.parametrize("images", [None, {}, {"image_mean": [0, 0], "image_std": [1, 1, 1]}])
def test_how_images_are_prepared_must_be_known(dense, tower, images):
    with pytest.raises(ConfigError, match="image_mean"):
        read(whole(dense, tower(), preprocessor_config=images))


def test_unified_models_have_no_tower(dense, tower):
    with pytest.raises(ConfigError, match=UNIFIED[0]) as refusal:
        read(whole(dense, tower(), architectures=[*UNIFIED]))
    assert "--mmproj" in refusal.value.hint


def test_bounds_must_be_complete(dense, tower):
    own = "model.vision_tower.encoder.layers.0.self_attn."
    assert read(whole(dense, tower()), [f"{own}q_proj.linear.weight"])
    with pytest.raises(TensorMismatchError, match="use_clipped_linears is true"):
        read(whole(dense, tower(use_clipped_linears=True)), [f"{own}q_proj.linear.weight"])
    with pytest.raises(TensorMismatchError, match="use_clipped_linears is false"):
        read(whole(dense, tower()), [f"{own}q_proj.input_min"])
    with pytest.raises(TensorMismatchError, match="standardize is true"):
        read(whole(dense, tower(standardize=True)), [f"{own}q_proj.linear.weight"])


def test_metadata_of_another_projector_is_refused():
    with pytest.raises(LoadError, match="projector_type"):
        Gemma4TowerHParams.from_metadata({"general.architecture": "clip", "clip.vision.projector_type": "gemma3"})


def test_a_text_model_has_no_projector(write, dense, tmp_path):
    folder = write(tmp_path / "source", dense())
    with pytest.raises(Exception, match="no vision tower"):
        convert(folder, "bf16", tmp_path / "mmproj.gguf", mmproj=True, plugins=Plugins.load())


def test_blocks_of_a_tower_are_not_taken_for_those_of_the_text_model(dense, weights):
    """Both have projections of the same names; block 2 has full attention, whose keys are the values."""
    config = dense(attention_k_eq_v=True)
    names = [*weights(config), "model.vision_tower.encoder.layers.2.self_attn.v_proj.linear.weight"]
    tensors = [TensorInfo(name=name, shape=(), dtype="BF16", file="", offset=0, nbytes=0) for name in names]
    assert Gemma4HParams.from_config(config, tensors).n_layer == 6
    name = "model.layers.2.self_attn.v_proj.weight"
    tensors.append(TensorInfo(name=name, shape=(), dtype="BF16", file="", offset=0, nbytes=0))
    with pytest.raises(TensorMismatchError, match="has a v_proj of block 2"):
        Gemma4HParams.from_config(config, tensors)
