"""From config.json and from GGUF metadata to the same sizes; what is not understood is refused."""

import msgspec
import pytest

from hf2q.errors import ConfigError, LoadError, TensorMismatchError
from hf2q.types import TensorInfo, ValueType
from hf2q_arch_qwen35.hparams import Qwen35HParams


def infos(*names):
    return [TensorInfo(name=name, shape=(1,), dtype="BF16", file="f", offset=0, nbytes=2) for name in names]


PLAIN = infos("model.embed_tokens.weight", "mtp.layers.0.input_layernorm.weight")


def read(config, tensors=PLAIN, mtp=True):
    return Qwen35HParams.from_config(config, tensors, mtp=mtp)


def stored(hparams):
    """What a GGUF file of this model would say."""
    metadata = {field.key: field.value for field in hparams.metadata()}
    return metadata | {"general.architecture": hparams.arch, "tokenizer.ggml.tokens": ["x"] * hparams.n_vocab}


def test_dense(dense):
    h = read(dense())
    assert h.arch == "qwen35"
    assert h.layer_kinds == ("linear_attention",) * 3 + ("full_attention", "mtp")
    assert (h.n_layer, h.n_trunk, h.n_mtp) == (5, 4, 1)
    assert (h.rope_dim, h.rope_sections, h.rope_base) == (8, (2, 1, 1, 0), 1e7)
    assert h.symbols["n_qkv"] == 2 * 32 * 2 + 32 * 4
    assert h.n_expert == 0


def test_moe(moe):
    h = read(moe())
    assert h.arch == "qwen35moe"
    assert (h.n_expert, h.n_expert_used, h.n_ff_expert, h.n_ff_shared, h.n_ff) == (4, 2, 64, 128, 0)
    keys = [field.key for field in h.metadata()]
    assert "qwen35moe.feed_forward_length" not in keys
    assert keys.index("qwen35moe.expert_count") < keys.index("qwen35moe.attention.key_length")
    assert keys.index("qwen35moe.expert_feed_forward_length") == keys.index("general.file_type") + 1


def test_what_gguf_says_gives_the_same_sizes(dense, moe):
    for config in (
        dense(),
        moe(),
        dense(layer_types=["full_attention", "linear_attention"], num_hidden_layers=2, full_attention_interval=3),
        moe(intermediate_size=99),
    ):
        for mtp in (True, False):
            h = read(config, mtp=mtp)
            assert Qwen35HParams.from_metadata(stored(h)) == h


def test_published_defaults_fill_gaps():
    h = read({"architectures": ["Qwen3_5ForCausalLM"], "num_hidden_layers": 4, "tie_word_embeddings": True})
    assert (h.n_vocab, h.n_embd, h.n_ff, h.n_head, h.n_head_kv, h.head_dim) == (248320, 4096, 12288, 16, 4, 256)
    assert (h.rope_dim, h.rope_sections, h.rope_base) == (64, (11, 11, 10, 0), 10000.0)
    assert (h.n_k_heads, h.n_v_heads, h.d_k, h.conv_kernel) == (16, 32, 128, 4)
    h = read({"architectures": ["Qwen3_5MoeForCausalLM"], "num_hidden_layers": 4, "tie_word_embeddings": True})
    assert (h.n_embd, h.n_head_kv, h.n_expert, h.n_expert_used) == (2048, 2, 256, 8)
    # sections that the config does not state are written last: llama.cpp, conversion/qwen.py, _Qwen35MRopeMixin
    assert h.metadata()[-1].key == "qwen35moe.rope.dimension_sections"


def test_blocks_follow_layer_types_or_the_interval(dense):
    kinds = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    assert read(dense(layer_types=kinds)).layer_kinds[:4] == tuple(kinds)
    assert read(dense(full_attention_interval=2)).recurrent == (True, False, True, False, False)


def field(hparams, key):
    return next((f for f in hparams.metadata() if f.key == f"{hparams.arch}.{key}"), None)


def test_the_interval_key_is_what_the_converter_writes(dense):
    assert field(read(dense(full_attention_interval=2)), "full_attention_interval").value == 4
    h = read(dense(full_attention_interval=2, layer_types=["linear_attention", "full_attention"] * 2))
    assert field(h, "full_attention_interval").value == 2


class TestMtp:
    """The tensors decide; the config may be silent, but not contradict them."""

    @pytest.mark.parametrize("declared", [None, 0, 1])
    def test_found_by_its_tensors(self, dense, declared):
        for prefix in ("", "model.", "model.language_model."):
            tensors = infos("embed", f"{prefix}mtp.layers.0.mlp.up_proj.weight", f"{prefix}mtp.fc.weight")
            assert read(dense(mtp_num_hidden_layers=declared), tensors).n_mtp == 1

    def test_two_blocks(self, dense):
        h = read(dense(mtp_num_hidden_layers=2), infos("mtp.layers.0.x", "mtp.layers.1.x"))
        assert h.layer_kinds[-2:] == ("mtp", "mtp_more")
        assert field(h, "nextn_predict_layers").value == 2

    def test_a_checkpoint_without_just_works(self, dense):
        h = read(dense(mtp_num_hidden_layers=1), infos("model.embed_tokens.weight", "model.smtp.x"))
        assert (h.n_mtp, h.n_layer) == (0, 4)
        assert field(h, "nextn_predict_layers") is None
        assert field(h, "attention.recurrent_layers").value == (True, True, True, False)

    def test_left_out_on_request(self, dense):
        h = read(dense(mtp_num_hidden_layers=7), mtp=False)
        assert (h.n_mtp, h.n_layer) == (0, 4)

    def test_a_contradiction(self, dense):
        with pytest.raises(TensorMismatchError, match="is 2, the checkpoint has tensors of 1"):
            read(dense(mtp_num_hidden_layers=2))

    def test_embeddings_of_its_own(self, dense):
        with pytest.raises(TensorMismatchError, match=r"no mtp\.embed_tokens\.weight"):
            read(dense(mtp_use_dedicated_embeddings=True))
        assert read(dense(mtp_use_dedicated_embeddings=True), [*PLAIN, *infos("mtp.embed_tokens.weight")]).n_mtp == 1


class TestEmbeddings:
    def test_untied_without_a_head_is_refused(self, dense):
        for config in (dense(tie_word_embeddings=False), dense(tie_word_embeddings=None)):
            with pytest.raises(TensorMismatchError, match="no lm_head"):
                read(config)
        for name in ("lm_head.weight", "language_model.lm_head.weight"):
            assert read(dense(tie_word_embeddings=False), infos(name))

    def test_the_root_or_the_text_config_may_say_tied(self, dense):
        text = dense(tie_word_embeddings=False)
        root = {"architectures": ["Qwen3_5ForConditionalGeneration"], "tie_word_embeddings": True, "text_config": text}
        assert read(root)
        assert read(root | {"tie_word_embeddings": False, "text_config": dense()})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_bias": True}, "attention_bias is True, expected False"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ({"attn_output_gate": False}, "attn_output_gate is False"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type is 'sigmoid'"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers is [0]"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False"),
        ({"is_causal": False}, "is_causal is False"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"new_fangled_mixer": 3}, "new_fangled_mixer = 3"),
        ({"num_hidden_layers": 3.0}, "num_hidden_layers is 3.0"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"layer_types": ["linear_attention"]}, "layer_types has 1 entries, num_hidden_layers is 4"),
        ({"layer_types": ["linear_attention"] * 3 + ["sliding_attention"]}, "layer_types is"),
        ({"layer_types": "linear_attention"}, "layer_types is"),
        ({"linear_value_head_dim": 64}, "key heads of 32 and value heads of 64"),
        ({"linear_num_value_heads": 3}, "3 value heads of linear attention are no multiple of 2"),
        ({"num_key_value_heads": 3}, "4 attention heads are no multiple of 3"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type is 'longrope'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "factor is missing"),
        ({"rope_parameters": {"mrope_interleaved": False}}, "mrope_interleaved is False"),
        ({"rope_parameters": {"partial_rotary_factor": 0.01}}, "0 rotated dimensions"),
        ({"rope_parameters": {"partial_rotary_factor": 1.5}}, "48 rotated dimensions of a head of 32"),
        ({"rope_parameters": {"mrope_section": [1, 2, 3, 4, 5]}}, "mrope_section is"),
        ({"rope_parameters": {"mrope_section": [0, 0, 0]}}, "all M-RoPE sections are 0"),
        ({"rope_parameters": {"surprise": 1}}, "rope_parameters has keys"),
        ({"rope_parameters": [1]}, "rope_parameters is [1], expected an object"),
        ({"rope_scaling": {"rope_type": "default"}}, "both rope_parameters and rope_scaling"),
        ({"text_config": 3}, "text_config is a int"),
    ],
)
def test_configs_that_are_not_understood(dense, changes, words):
    with pytest.raises(ConfigError) as caught:
        read(dense(**changes))
    assert words in caught.value.message


def test_absurd_counts_are_refused_before_anything_is_made_for_each(dense, moe):
    """Each would take all memory: names of tensors, and kinds of blocks."""
    huge = 4_000_000_000
    with pytest.raises(ConfigError, match="num_hidden_layers is 4000000000"):
        read(dense(num_hidden_layers=huge))
    with pytest.raises(ConfigError, match="num_experts is 4000000000"):
        read(moe(num_experts=huge))
    with pytest.raises(TensorMismatchError, match="MTP block 400000000"):
        read(dense(), [*PLAIN, *infos("mtp.layers.400000000.x")])
    with pytest.raises(LoadError, match="expert_count"):
        Qwen35HParams.from_metadata(stored(read(moe())) | {"qwen35moe.expert_count": huge})


def test_an_mtp_block_number_that_is_none_is_left_for_the_catalog_to_refuse(dense):
    assert read(dense(), [*PLAIN, *infos(f"mtp.layers.{'9' * 5000}.x")]).n_mtp == 1


def test_a_null_in_the_text_config_does_not_hide_the_class(moe):
    config = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": moe() | {"architectures": None}}
    assert read(config).arch == "qwen35moe"


def test_more_experts_used_than_there_are(moe):
    with pytest.raises(ConfigError, match="9 experts used of 4"):
        read(moe(num_experts_per_tok=9))


def test_keys_of_published_checkpoints_are_all_known(dense):
    known = {
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "initializer_range": 0.02,
        "use_cache": True,
        "mamba_ssm_dtype": "float32",
        "mlp_only_layers": [],
        "output_gate_type": "swish",
        "attn_output_gate": True,
        "attention_bias": False,
        "bos_token_id": 5,
        "pad_token_id": None,
        "partial_rotary_factor": 0.25,
        "mtp_use_dedicated_embeddings": False,
    }
    outside = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "image_token_id": 1,
        "video_token_id": 2,
        "vision_start_token_id": 3,
        "vision_end_token_id": 4,
        "language_model_only": False,
        "transformers_version": "4.57.0.dev0",
        "vision_config": {"depth": 1},
        "tie_word_embeddings": True,
    }
    assert read({**outside, "text_config": dense(**known)}) == read(dense())


def test_scaled_rope_is_written_as_the_converter_does_but_not_loaded(dense):
    rope = dense()["rope_parameters"] | {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 32,
    }
    h = read(dense(rope_parameters=rope))
    assert [(f.key, f.type, f.value) for f in h.metadata() if ".scaling." in f.key] == [
        ("qwen35.rope.scaling.type", ValueType.STRING, "yarn"),
        ("qwen35.rope.scaling.factor", ValueType.FLOAT32, 4.0),
        ("qwen35.rope.scaling.original_context_length", ValueType.UINT32, 256),
        ("qwen35.rope.scaling.yarn_beta_fast", ValueType.FLOAT32, 32.0),
    ]
    metadata = stored(h)
    with pytest.raises(LoadError, match="unscaled RoPE only"):
        Qwen35HParams.from_metadata(metadata)
    del metadata["qwen35.rope.scaling.type"]
    with pytest.raises(LoadError, match=r"rope\.scaling\.factor is 4\.0; .* unscaled RoPE only"):
        Qwen35HParams.from_metadata(metadata)


class TestFromMetadata:
    @pytest.mark.parametrize(
        "key", ["block_count", "attention.head_count", "ssm.inner_size", "rope.dimension_sections"]
    )
    def test_missing_keys_are_named(self, dense, key):
        metadata = stored(read(dense()))
        del metadata[f"qwen35.{key}"]
        with pytest.raises(LoadError, match=f"lacks qwen35.{key}"):
            Qwen35HParams.from_metadata(metadata)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("block_count", 0),
            ("block_count", "5"),
            ("block_count", True),
            ("block_count", 6),  # kinds of blocks are listed for 5
            ("nextn_predict_layers", 5),
            ("ssm.time_step_rank", 7),
            ("ssm.time_step_rank", 0),
            ("ssm.state_size", 16),
            ("attention.value_length", 31),
            ("attention.head_count_kv", 3),
            ("attention.head_count", [4, 4]),
            ("attention.layer_norm_rms_epsilon", 0.0),
            ("attention.layer_norm_rms_epsilon", float("nan")),
            ("rope.freq_base", "big"),
            ("rope.dimension_sections", [1, 2, 3]),
            ("rope.dimension_sections", [1, 2, 3, -1]),
            ("rope.dimension_count", 33),
            ("attention.recurrent_layers", [1, 1, 1, 0, 0]),
            ("attention.recurrent_layers", [True] * 5),  # the MTP block attends
            ("attention.recurrent_layers", "yes"),
            ("full_attention_interval", 0),
            ("block_count", 4_000_000_000),
        ],
    )
    def test_values_that_cannot_be(self, dense, key, value):
        metadata = stored(read(dense())) | {f"qwen35.{key}": value}
        with pytest.raises(LoadError, match="qwen35"):
            Qwen35HParams.from_metadata(metadata)

    def test_files_without_a_list_of_kinds_go_by_the_interval(self, dense):
        h = read(dense())
        metadata = stored(h)
        del metadata["qwen35.attention.recurrent_layers"]
        assert Qwen35HParams.from_metadata(metadata) == h
        metadata["qwen35.full_attention_interval"] = 2
        assert Qwen35HParams.from_metadata(metadata).recurrent == (True, False, True, False, False)

    @pytest.mark.parametrize("tokens", [None, [], "text", 5])
    def test_a_vocabulary_is_needed(self, dense, tokens):
        with pytest.raises(LoadError, match="vocabulary"):
            Qwen35HParams.from_metadata(stored(read(dense())) | {"tokenizer.ggml.tokens": tokens})

    def test_other_archs(self, dense):
        with pytest.raises(LoadError, match="'llama', expected 'qwen35' or 'qwen35moe'"):
            Qwen35HParams.from_metadata(stored(read(dense())) | {"general.architecture": "llama"})


def test_hparams_are_frozen(dense):
    h = read(dense())
    with pytest.raises(AttributeError):
        h.n_layer = 3
    assert msgspec.structs.replace(h, n_ctx=5).n_ctx == 5
