"""Config keys of the family in the published form and in transformers', and GGUF metadata back again."""

import deepseek4_layouts as layouts
import pytest

from hf2q.errors import ConfigError, LoadError
from hf2q.plugins import Plugins
from hf2q_arch_deepseek4.hparams import DeepSeek4HParams, Yarn


def read(config, **changes):
    config = {key: value for key, value in {**config, **changes}.items() if value is not ...}
    return DeepSeek4HParams.from_config(config, [])


def metadata(hparams):
    found = {field.key: field.value for field in hparams.metadata()}
    return {**found, "general.architecture": "deepseek4", "tokenizer.ggml.tokens": ["x"] * hparams.n_vocab}


def test_the_family_is_recognised():
    assert Plugins.load().arch_for("DeepseekV4ForCausalLM").arch == "deepseek4"


def test_both_forms_of_the_config_say_the_same():
    published, saved = read(layouts.PLAIN), read(layouts.SAVED)
    assert saved.compress_ratios == published.compress_ratios[:4]
    for field in published.__struct_fields__:
        if field != "compress_ratios":
            assert getattr(saved, field) == getattr(published, field), field
    assert published.layer_kinds == ("sliding_hash", "sparse_hash", "heavy_top_k", "sparse_top_k")
    assert published.yarn == Yarn(factor=4, original=128, beta_fast=32, beta_slow=1)


def test_keys_of_both_forms_together_must_agree():
    assert read(layouts.PLAIN, layer_types=layouts.SAVED["layer_types"]) == read(layouts.PLAIN)
    assert read(layouts.PLAIN, mlp_layer_types=layouts.SAVED["mlp_layer_types"]) == read(layouts.PLAIN)
    with pytest.raises(ConfigError, match="contradict"):
        read(layouts.PLAIN, layer_types=["sliding_attention"] * 4)
    with pytest.raises(ConfigError, match="num_hash_layers is 3"):
        read(layouts.SAVED, num_hash_layers=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": ...}, "neither compress_ratios nor layer_types"),
        ({"num_hash_layers": ...}, "num_hash_layers is missing"),
        ({"compress_ratios": [0, 4, 128]}, "ratios of 3 blocks are given for 4"),
        ({"compress_ratios": [0, 4, 64, 4]}, "compress_ratios is"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"num_hash_layers": 5}, "5 blocks that route by token id"),
        ({"o_groups": 3}, "divided into 3 groups"),
        ({"qk_rope_head_dim": 7}, "7 rotated values"),
        ({"num_experts_per_tok": 9}, "9 experts used of 3"),
        ({"index_head_dim": 17}, "indexer heads of 17 values, expected even"),
        ({"hc_sinkhorn_iters": 1001}, "hc_sinkhorn_iters is 1001"),
        ({"compress_rope_theta": 1}, "a RoPE base of 1"),
        ({"n_group": 8}, "n_group = 8"),
        ({"partial_rotary_factor": 0.5}, "qk_rope_head_dim is 8"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "type is 'linear'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "original_max_position_embeddings is missing"),
        ({"rope_parameters": {"rope_type": "default"}}, "both rope_parameters and rope_scaling"),
        ({"compress_rates": {"compressed_sparse_attention": 8}}, "compressed_sparse_attention is 8"),
    ],
)
def test_what_the_family_does_not_know_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        read(layouts.PLAIN, **changes)


@pytest.mark.parametrize(
    ("place", "changes", "message"),
    [
        ("compress", {"attention_factor": 1.2}, "attention_factor is 1.2"),
        ("compress", {"rope_theta": 5.0}, "rope_theta is 5.0"),
        ("compress", {"mscale": 1.0}, "mscale = 1.0"),
        ("main", {"rope_type": "yarn"}, "rope_type is 'yarn'"),
        ("main", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ],
)
def test_sections_of_rope_parameters(place, changes, message):
    rope = layouts.SAVED["rope_parameters"]
    with pytest.raises(ConfigError, match=message):
        read(layouts.SAVED, rope_parameters={**rope, place: {**rope[place], **changes}})


def test_without_yarn_nothing_is_said_of_it():
    plain = read(layouts.PLAIN, rope_scaling=...)
    assert plain.yarn is None
    assert not any("rope.scaling" in field.key for field in plain.metadata())
    assert DeepSeek4HParams.from_metadata(metadata(plain)) == plain


def test_metadata_and_back():
    hparams = read(layouts.PLAIN)
    assert DeepSeek4HParams.from_metadata(metadata(hparams)) == hparams


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.head_count_kv", 2, "head_count_kv is 2, expected 1"),
        ("expert_gating_func", 2, "expert_gating_func is 2, expected 4"),
        ("nextn_predict_layers", 1, "nextn_predict_layers is 1, expected 0"),
        ("attention.sliding_window", 1 << 31, "a whole number from 1 to 2147483647"),
        ("attention.value_length", 8, "value_length is 8, expected 40"),
        ("embedding_length_out", 64, "embedding_length_out is 64, expected 256"),
        ("rope.scaling.type", "linear", "expected 'yarn'"),
        ("swiglu_clamp_exp", [10.0] * 3, "expected 4 positive numbers"),
        ("swiglu_clamp_exp", [10.0, 10.0, 10.0, 9.0], "the same number for every block"),
        ("swiglu_clamp_shexp", [9.0] * 4, "expected 10.0, as for routed experts"),
        ("attention.compress_ratios", [0, 4], "ratios of 2 blocks"),
        ("hyper_connection.sinkhorn_iterations", 1 << 31, "a whole number from 1 to 1000"),
        ("attention.compress_rope_freq_base", 1.0, "RoPE base of 1.0 where RoPE is stretched"),
        ("attention.compress_ratios", [0, 4, 5, 4], "ratio of 5"),
        ("attention.compress_ratios", "0", "a list of whole numbers"),
        ("expert_weights_norm", 1, "true or false"),
    ],
)
def test_metadata_that_cannot_be_run_is_refused(key, value, message):
    with pytest.raises(LoadError, match=message):
        DeepSeek4HParams.from_metadata({**metadata(read(layouts.PLAIN)), f"deepseek4.{key}": value})


def test_files_of_another_arch_are_refused():
    with pytest.raises(LoadError, match=r"general\.architecture is 'llama'"):
        DeepSeek4HParams.from_metadata({"general.architecture": "llama"})


def test_a_scaled_rope_that_does_not_say_how_is_refused():
    found = metadata(read(layouts.PLAIN))
    assert found.pop("deepseek4.rope.scaling.type") == "yarn"
    with pytest.raises(LoadError, match=r"lacks deepseek4\.rope\.scaling\.type, though there is a factor of"):
        DeepSeek4HParams.from_metadata(found)
