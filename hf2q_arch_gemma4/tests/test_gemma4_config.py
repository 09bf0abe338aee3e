"""What config.json may say, what follows from it, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from hf2q.convert import convert
from hf2q.errors import ConfigError, LoadError, TensorMismatchError
from hf2q.formats.gguf import open_gguf
from hf2q.plugins import Plugins
from hf2q.types import TensorInfo
from hf2q_arch_gemma4.families import DRAFTERS, UNIFIED
from hf2q_arch_gemma4.hparams import Gemma4HParams

PLAIN = {"provenance": False, "sidecars": False, "receipt": False}


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


def read(config, names=()):
    tensors = [TensorInfo(name=name, shape=(), dtype="BF16", file="", offset=0, nbytes=0) for name in names]
    return Gemma4HParams.from_config(config, tensors)


def values(hparams):
    return {field.key.removeprefix("gemma4."): field.value for field in hparams.metadata()}


def test_defaults_are_those_of_transformers():
    h = read({"architectures": ["Gemma4ForCausalLM"]})
    assert (h.n_layer, h.n_embd, h.n_ff, h.n_ctx, h.n_vocab) == (30, 2304, 9216, 131072, 262144)
    assert (h.head_dim_swa, h.head_dim_full, h.n_head, h.n_head_kv_swa, h.n_head_kv_full) == (256, 512, 8, 4, 4)
    assert (h.n_ple, h.n_window, h.softcap, h.rotated_pairs) == (256, 512, None, 64)
    assert [i for i, swa in enumerate(h.sliding) if not swa] == [5, 11, 17, 23, 29]


def test_a_unified_model_has_defaults_of_its_own():
    h = read({"architectures": [*UNIFIED], "generation_config.json": {"suppress_tokens": [7, 9]}})
    assert (h.n_ctx, h.n_window, h.n_ple) == (262144, 1024, 0)
    assert h.metadata()[-1].key == "tokenizer.ggml.suppress_tokens"
    assert h.metadata()[-1].value == (7, 9)


def test_tokens_are_suppressed_in_unified_models_only(dense):
    assert read(dense() | {"generation_config.json": {"suppress_tokens": [7]}}).suppressed is None


@pytest.mark.parametrize("wrong", ["7", [], [1.5], [-1], [True]])
def test_suppressed_tokens_that_are_none_are_refused(wrong):
    with pytest.raises(ConfigError, match="suppress_tokens"):
        read({"architectures": [*UNIFIED], "generation_config.json": {"suppress_tokens": wrong}})


def test_the_last_block_has_full_attention_whatever_the_config_says(dense):
    h = read(dense(layer_types=["sliding_attention"] * 6))
    assert h.sliding == (True,) * 5 + (False,)


def test_both_spellings_of_what_differs_by_block_are_one(dense):
    old = dense(attention_k_eq_v=True, num_global_key_value_heads=1)
    listed = {"02": {"head_dim": 64, "num_key_value_heads": 1}, "05": {"head_dim": 64, "num_key_value_heads": 1}}
    new = dense(attention_k_eq_v=True, global_head_dim=None, per_layer_config=listed)
    assert read(old) == read(new)
    assert values(read(old))["attention.head_count_kv"] == (2, 2, 1, 2, 2, 1)


def test_an_empty_list_of_differences_makes_all_heads_alike(dense):
    h = read(dense(global_head_dim=None, per_layer_config={}))
    assert (h.head_dim_full, h.n_head_kv_full) == (h.head_dim_swa, h.n_head_kv_swa) == (32, 2)


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ({"2": {"head_dim": 64}}, "different heads"),
        ({"0": {"head_dim": 64}}, "sliding"),
        ({"2": {"intermediate_size": 8}, "5": {}}, "intermediate_size"),
        ({"2": {"skip": ["mlp"]}}, "skip"),
        ({"x": {}}, "numbers of blocks"),
        ({"6": {}}, "numbers of blocks"),
        ({"2": {}, "02": {}}, "every block once"),
        ([], "object"),
    ],
)
def test_differences_that_gguf_cannot_say_are_refused(dense, listed, message):
    with pytest.raises(ConfigError, match=message):
        read(dense(global_head_dim=None, per_layer_config=listed))


def test_widths_double_in_blocks_that_share(small):
    h = read(small())
    assert values(h)["feed_forward_length"] == (256, 256, 256, 512, 512, 512)
    assert h.layer_kinds[2:4] == ("full_attention", "sliding_attention_shared_kv")
    assert h.symbols["n_ff_shared"] == 512


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"attention_bias": True}, "attention_bias"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"use_bidirectional_attention": "text"}, "use_bidirectional_attention"),
        ({"num_experts": 4}, "num_experts"),
        ({"num_kv_shared_layers": 6}, "leaves none"),
        ({"num_kv_shared_layers": 4}, "no earlier block of that kind"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"global_head_dim": 33}, "even"),
        ({"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 9}, "one vocabulary"),
        ({"rope_parameters": {"full_attention": {}}}, "sliding_attention"),
        ({"a_new_key": 1}, "a_new_key"),
    ],
)
def test_what_is_not_understood_is_refused(dense, changes, message):
    with pytest.raises(ConfigError, match=message):
        read(dense(**changes))


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("full_attention", "rope_type", "linear"),
        ("full_attention", "factor", 8.0),
        ("sliding_attention", "rope_type", "yarn"),
        ("sliding_attention", "partial_rotary_factor", 0.5),
        ("full_attention", "unheard_of", 1),
    ],
)
def test_other_rotations_are_refused(dense, part, key, value):
    config = dense()
    config["rope_parameters"] = json.loads(json.dumps(config["rope_parameters"]))
    config["rope_parameters"][part][key] = value
    with pytest.raises(ConfigError, match=key):
        read(config)


@pytest.mark.parametrize("name", DRAFTERS)
def test_drafters_are_recognised_and_refused_by_name(plugins, name):
    assert plugins.arch_for(name).arch == "gemma4"
    with pytest.raises(ConfigError, match=f"{name} is a drafter") as refusal:
        read({"architectures": [name]})
    assert "drafts for" in refusal.value.hint


def test_keys_that_are_values_and_projected_values_contradict_each_other(dense):
    block = ["model.layers.2.self_attn.k_proj.weight", "model.layers.5.self_attn.k_proj.weight"]
    projected = [*block, "model.layers.2.self_attn.v_proj.weight", "model.layers.5.self_attn.v_proj.weight"]
    assert read(dense(attention_k_eq_v=True), block)
    assert read(dense(), projected)
    with pytest.raises(TensorMismatchError, match="lacks the v_proj of block 2, 5"):
        read(dense(), block)
    with pytest.raises(TensorMismatchError, match="has a v_proj of block 5"):
        read(dense(attention_k_eq_v=True), [*block, projected[-1]])


def test_an_output_head_is_needed_unless_the_embeddings_are_tied(dense):
    with pytest.raises(TensorMismatchError, match=r"no lm_head\.weight"):
        read(dense(tie_word_embeddings=False))
    assert read(dense(tie_word_embeddings=False), ["lm_head.weight"])


def test_embeddings_of_another_size_are_refused(dense):
    wrong = TensorInfo(name="model.embed_tokens.weight", shape=(9, 4), dtype="F32", file="", offset=0, nbytes=0)
    with pytest.raises(TensorMismatchError, match="9 rows"):
        Gemma4HParams.from_config(dense(), [wrong])


def test_a_model_that_sees_both_ways_is_converted_and_not_loaded(dense):
    h = read(dense(use_bidirectional_attention="all"))
    metadata = {field.key: field.value for field in h.metadata()}
    metadata |= {"general.architecture": "gemma4", "tokenizer.ggml.tokens": ["a"]}
    assert metadata.pop("gemma4.attention.causal") is False
    assert Gemma4HParams.from_metadata(metadata).causal
    with pytest.raises(LoadError, match="causal"):
        Gemma4HParams.from_metadata({**metadata, "gemma4.attention.causal": False})


def test_windows_beyond_all_positions_and_a_scaled_rope_are_refused(dense):
    metadata = {field.key: field.value for field in read(dense()).metadata()}
    metadata |= {"general.architecture": "gemma4", "tokenizer.ggml.tokens": ["a"]}
    Gemma4HParams.from_metadata({**metadata, "gemma4.attention.sliding_window": (1 << 31) - 1})
    with pytest.raises(LoadError, match=r"attention\.sliding_window is 2147483648, expected .* to 2147483647"):
        Gemma4HParams.from_metadata({**metadata, "gemma4.attention.sliding_window": 1 << 31})
    with pytest.raises(LoadError, match="unscaled RoPE only"):
        Gemma4HParams.from_metadata({**metadata, "gemma4.rope.scaling.factor": 8.0})


def test_rows_without_a_token_are_left_out(plugins, write, small, tmp_path):
    config = small(vocab_size=304, vocab_size_per_layer_input=304)
    folder = write(tmp_path / "padded", config, n_tokens=272)
    made = convert(folder, "bf16", tmp_path / "out.gguf", plugins=plugins, **PLAIN)
    whole = convert(write(tmp_path / "whole", config), "bf16", tmp_path / "whole.gguf", plugins=plugins, **PLAIN)
    with open_gguf(made.output) as file, open_gguf(whole.output) as full:
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 272
        for name in ("token_embd.weight", "per_layer_token_embd.weight"):
            assert file.tensors[name].shape[0] == 272
            assert full.tensors[name].shape[0] == 304
            assert np.array_equal(np.array(file.rows(name)), np.array(full.rows(name))[:272])


def test_a_tokenizer_larger_than_the_embeddings_is_refused(plugins, write, dense, tmp_path):
    folder = write(tmp_path / "source", dense(), n_tokens=280)
    with pytest.raises(ConfigError, match="280 tokens"):
        convert(folder, "bf16", tmp_path / "out.gguf", plugins=plugins)


def test_what_angles_are_divided_by(plugins, write, dense, tmp_path):
    made = convert(write(tmp_path / "source", dense()), "bf16", tmp_path / "out.gguf", plugins=plugins, **PLAIN)
    with open_gguf(made.output) as file:
        assert next(iter(file.tensors)) == "rope_freqs.weight"
        factors = np.frombuffer(file.rows("rope_freqs.weight").tobytes(), "<f4")
    assert factors.tolist() == [1.0] * 8 + [np.float32(1e30)] * 24


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", "language_model.", ""])
def test_prefixes_make_no_difference(plugins, write, dense, tmp_path, prefix):
    plain, other = (
        write(tmp_path / name / "source", dense(), prefix=p) for name, p in (("a", "model."), ("b", prefix))
    )
    files = [convert(f, "bf16", f.parent / "out.gguf", plugins=plugins, **PLAIN).output for f in (plain, other)]
    first, second = (Path(file).read_bytes() for file in files)
    assert first == second


def test_sound_and_pictures_are_left_out_with_a_reason(plugins, write, small, weights, tmp_path):
    extra = {
        "model.vision_tower.encoder.layers.0.x.weight": np.ones((2, 2), np.float32),
        "model.audio_tower.layers.0.x.weight": np.ones((2, 2), np.float32),
        "model.embed_vision.embedding_projection.weight": np.ones((2, 2), np.float32),
        "model.embed_audio.embedding_projection.weight": np.ones((2, 2), np.float32),
    }
    config = small()
    folder = write(tmp_path / "source", config, tensors=weights(config) | extra)
    plan = convert(folder, "bf16", tmp_path / "out.gguf", plugins=plugins, dry_run=True).plan
    assert dict(plan.ignored).keys() == extra.keys()
    assert all(reason for _, reason in plan.ignored)


def test_the_chat_format_is_there(plugins):
    chat = plugins.chat_format(plugins.arch("gemma4").chat_format)
    assert chat.reasoning == ("<|channel>thought", "<channel|>")
    assert "<turn|>" in chat.end_of_turn
