"""One model in the layouts it is found in: each must give the same file, and nothing may be guessed."""

import json

import numpy as np
import pytest

from hf2q.convert import convert
from hf2q.errors import EncodeError, SourceError, TensorMismatchError
from hf2q.formats.gguf.reader import open_gguf


@pytest.fixture
def made(tmp_path, write):
    """`made(config, **options)`: metadata and tensors by name of the f32 file of a checkpoint.

    Not its bytes, since the order of tensors is that of the checkpoint's names.
    """
    count = 0

    def make(config, **options):
        nonlocal count
        count += 1
        folder = write(tmp_path / str(count) / "tiny", config, **options)
        output = tmp_path / f"{count}.gguf"
        convert(folder, "f32", output, provenance=False, sidecars=False)
        with open_gguf(output) as opened:
            tensors = {name: (t.shape, np.array(opened.rows(name)).tobytes()) for name, t in opened.tensors.items()}
            return {key: opened.metadata[key] for key in opened.keys_in_order}, tensors

    return make


def values(folder, output, name):
    """A tensor of the f32 file of a checkpoint."""
    made = convert(folder, "f32", output, force=True)
    with open_gguf(made.output) as opened:
        return np.array(opened.rows(name)).view(np.float32).reshape(opened.tensors[name].shape)


def renamed(tensors, rename):
    return {rename(name): x for name, x in tensors.items()}


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name.replace("model.", "model.language_model.", 1),
        lambda name: f"language_model.{name}",
        lambda name: name.removeprefix("model."),
        lambda name: name if name.startswith("model.") else f"model.{name}",
    ],
)
def test_prefixes(made, dense, weights, rename):
    tensors = weights(dense(tie_word_embeddings=False))
    assert made(dense(), tensors=renamed(tensors, rename)) == made(dense(), tensors=tensors)


def test_nested_and_flat_configs(made, dense):
    nested = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": dense(architectures=None),
        "vision_config": {},
    }
    assert made(nested, prefix="language_model.") == made(dense())


def test_experts_packed_or_single(made, moe, weights):
    packed = weights(moe())
    single = {}
    for name, x in packed.items():
        head, found, part = name.partition("mlp.experts.")
        if not found:
            single[name] = x
            continue
        for e, one in enumerate(x):
            if part == "down_proj":
                single[f"{head}mlp.experts.{e}.down_proj.weight"] = one
            else:
                gate, up = np.split(one, 2)
                single |= {
                    f"{head}mlp.experts.{e}.gate_proj.weight": gate,
                    f"{head}mlp.experts.{e}.up_proj.weight": up,
                }
    suffixed = {f"{name}.weight" if ".experts." in name else name: x for name, x in packed.items()}
    expected = made(moe(), tensors=packed)
    assert made(moe(), tensors=single) == expected
    assert made(moe(), tensors=suffixed) == expected


def test_fused_projections_of_linear_attention(made, dense, weights):
    """The layout of Qwen3-Next: one projection for q, k, v, z and one for b, a, each grouped by key head."""
    for config in (dense(), dense(linear_num_key_heads=4)):
        split = weights(config)
        k, v, d = config["linear_num_key_heads"], config["linear_num_value_heads"], 32
        r = v // k
        fused = {}
        for name, x in split.items():
            if ".linear_attn.in_proj_" not in name:
                fused[name] = x
        for i in range(3):
            own = f"model.layers.{i}.linear_attn."
            q, key, value = np.split(split[f"{own}in_proj_qkv.weight"], [k * d, 2 * k * d])
            z, b, a = (split[f"{own}in_proj_{part}.weight"] for part in "zba")
            groups = [
                (q[g * d :][:d], key[g * d :][:d], value[g * r * d :][: r * d], z[g * r * d :][: r * d])
                for g in range(k)
            ]
            fused[f"{own}in_proj_qkvz.weight"] = np.concatenate([part for group in groups for part in group])
            pairs = [(b[g * r :][:r], a[g * r :][:r]) for g in range(k)]
            fused[f"{own}in_proj_ba.weight"] = np.concatenate([part for pair in pairs for part in pair])
        assert made(config, tensors=fused) == made(config, tensors=split)


def test_head_order_and_arithmetic_by_hand(dense, weights, write, tmp_path):
    """Value head j·H_k + g of the file is head g·r + j of the checkpoint, everywhere."""
    config = dense()
    tensors = weights(config)
    folder = write(tmp_path / "m", config, tensors=tensors, dtype="F32")
    order = [0, 2, 1, 3]  # H_k 2, r 2
    own = "model.layers.1.linear_attn."

    def of(name):
        return values(folder, tmp_path / "out.gguf", f"blk.1.{name}")

    def heads(x):
        return x.reshape(4, -1, *x.shape[1:])[order].reshape(x.shape)

    qkv = tensors[f"{own}in_proj_qkv.weight"]
    np.testing.assert_array_equal(of("attn_qkv.weight"), np.concatenate([qkv[:128], heads(qkv[128:])]))
    np.testing.assert_array_equal(of("attn_gate.weight"), heads(tensors[f"{own}in_proj_z.weight"]))
    np.testing.assert_array_equal(of("ssm_beta.weight"), heads(tensors[f"{own}in_proj_b.weight"]))
    np.testing.assert_array_equal(of("ssm_alpha.weight"), heads(tensors[f"{own}in_proj_a.weight"]))
    np.testing.assert_array_equal(of("ssm_out.weight"), heads(tensors[f"{own}out_proj.weight"].T).T)
    np.testing.assert_array_equal(of("ssm_dt.bias"), heads(tensors[f"{own}dt_bias"]))
    np.testing.assert_allclose(of("ssm_a"), -np.exp(heads(tensors[f"{own}A_log"]).astype(float)), rtol=1e-7)
    conv = tensors[f"{own}conv1d.weight"][:, 0]
    np.testing.assert_array_equal(of("ssm_conv1d.weight"), np.concatenate([conv[:128], heads(conv[128:])]))
    np.testing.assert_array_equal(of("ssm_norm.weight"), tensors[f"{own}norm.weight"])  # not centred on zero
    for name, source in (
        ("blk.1.attn_norm", "model.layers.1.input_layernorm"),
        ("blk.1.post_attention_norm", "model.layers.1.post_attention_layernorm"),
        ("blk.3.attn_q_norm", "model.layers.3.self_attn.q_norm"),
        ("blk.3.attn_k_norm", "model.layers.3.self_attn.k_norm"),
        ("output_norm", "model.norm"),
        ("blk.4.attn_norm", "mtp.layers.0.input_layernorm"),
        ("blk.4.nextn.enorm", "mtp.pre_fc_norm_embedding"),
        ("blk.4.nextn.hnorm", "mtp.pre_fc_norm_hidden"),
        ("blk.4.nextn.shared_head_norm", "mtp.norm"),
    ):
        found = values(folder, tmp_path / "out.gguf", f"{name}.weight")
        np.testing.assert_array_equal(found, tensors[f"{source}.weight"] + np.float32(1))


def names_of(summary):
    return {tensor.name for tensor in summary.plan.tensors}


def planned(folder, **options):
    return convert(folder, "bf16", folder.parent / "out.gguf", dry_run=True, **options)


def test_mtp_kept_and_left_out(dense, write, tmp_path):
    folder = write(tmp_path / "m", dense())
    kept, without = planned(folder), planned(folder, mtp=False)
    assert {name for name in names_of(kept) - names_of(without)} == {n for n in names_of(kept) if "blk.4." in n}
    assert len(names_of(kept) - names_of(without)) == 15
    keys = {field.key: field.value for field in without.plan.metadata}
    assert keys["qwen35.block_count"] == 4
    assert "qwen35.nextn_predict_layers" not in keys
    assert len(keys["qwen35.attention.recurrent_layers"]) == 4


def test_a_second_mtp_block_has_no_projections(dense, weights, write, tmp_path):
    config = dense(mtp_num_hidden_layers=2)
    found = names_of(planned(write(tmp_path / "m", config, tensors=weights(config))))
    assert "blk.4.nextn.eh_proj.weight" in found
    assert "blk.5.attn_q.weight" in found
    assert not any("blk.5.nextn" in name for name in found)


def test_optional_parts_of_mtp(dense, weights, write, tmp_path):
    tensors = weights(dense())
    del tensors["mtp.norm.weight"]
    tensors["mtp.embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    found = names_of(planned(write(tmp_path / "m", dense(), tensors=tensors)))
    assert "blk.4.nextn.embed_tokens.weight" in found
    assert "blk.4.nextn.shared_head_norm.weight" not in found


def test_half_an_mtp_block_is_refused_but_can_be_left_out(dense, weights, write, tmp_path):
    tensors = weights(dense())
    del tensors["mtp.layers.0.self_attn.q_proj.weight"], tensors["mtp.fc.weight"]
    folder = write(tmp_path / "m", dense(), tensors=tensors)
    with pytest.raises(TensorMismatchError) as caught:
        planned(folder)
    assert "blk.4.attn_q.weight (from mtp.layers.0.self_attn.q_proj.weight)" in caught.value.message
    assert "blk.4.nextn.eh_proj.weight" in caught.value.message
    assert len(names_of(planned(folder, mtp=False))) == 55


def test_a_head_of_its_own_is_written_whatever_the_config_says(dense, weights, write, tmp_path):
    """transformers, too, ties only what is equal or absent (modeling_utils.py, tie_weights)."""
    tensors = weights(dense())
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 2
    folder = write(tmp_path / "m", dense(), tensors=tensors, dtype="F32")
    np.testing.assert_array_equal(values(folder, tmp_path / "o.gguf", "output.weight"), tensors["lm_head.weight"])


def test_vision_is_left_out_with_its_reason(dense, weights, write, tmp_path):
    tensors = weights(dense()) | {"model.visual.blocks.0.attn.qkv.weight": np.zeros((4, 4), np.float32)}
    made = planned(write(tmp_path / "m", dense(), tensors=tensors))
    assert made.plan.ignored == (("model.visual.blocks.0.attn.qkv.weight", "vision tower: a file of its own"),)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("model.layers.0.linear_attn.conv1d.weight", (256, 4, 1), "MLX stores its convolutions"),
        ("model.layers.0.linear_attn.in_proj_qkv.weight", (257, 256), "shape (257, 256), expected (256, 256), or"),
        ("model.layers.0.linear_attn.in_proj_z.weight", (128, 255), "shape (128, 255), expected (128, 256)"),
        ("model.layers.0.linear_attn.out_proj.weight", (256, 127), "127"),
        ("model.layers.0.linear_attn.A_log", (5,), "A_log"),
        ("model.layers.3.self_attn.q_proj.weight", (128, 256), "expected (256, 256)"),
        ("model.embed_tokens.weight", (511, 256), "shape (511, 256), expected (512, 256)"),
    ],
)
def test_shapes_that_do_not_fit(dense, weights, write, tmp_path, name, shape, words):
    tensors = weights(dense())
    tensors[name] = np.zeros(shape, np.float32)
    with pytest.raises(TensorMismatchError) as caught:
        planned(write(tmp_path / "m", dense(), tensors=tensors))
    assert words in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.mlp.experts.gate_up_proj", (4, 127, 256)),
        ("model.layers.0.mlp.experts.gate_up_proj", (3, 128, 256)),
        ("model.layers.0.mlp.experts.down_proj", (4, 256, 63)),
        ("model.layers.0.mlp.gate.weight", (3, 256)),
    ],
)
def test_shapes_of_experts_that_do_not_fit(moe, weights, write, tmp_path, name, shape):
    tensors = weights(moe())
    tensors[name] = np.zeros(shape, np.float32)
    with pytest.raises(TensorMismatchError, match="expected"):
        planned(write(tmp_path / "m", moe(), tensors=tensors))


def test_an_expert_that_is_missing_or_too_many(moe, weights, write, tmp_path):
    tensors = weights(moe(), "single")
    extra = tensors | {"model.layers.0.mlp.experts.4.up_proj.weight": np.zeros((64, 256), np.float32)}
    with pytest.raises(TensorMismatchError, match=r"not known to qwen35moe: model\.layers\.0\.mlp\.experts\.4"):
        planned(write(tmp_path / "a", moe(), tensors=extra))
    del tensors["model.layers.0.mlp.experts.2.up_proj.weight"]
    with pytest.raises(
        TensorMismatchError, match=r"blk\.0\.ffn_up_exps\.weight \(from layers\.0\.mlp\.experts\.2\.up_proj\.weight\)"
    ):
        planned(write(tmp_path / "b", moe(), tensors=tensors))


def test_files_written_by_mlx_are_refused(dense, write, tmp_path):
    with pytest.raises(SourceError, match="written by MLX"):
        planned(write(tmp_path / "m", dense(), metadata={"format": "mlx"}))


def test_quantized_weights_are_refused(dense, write, tmp_path):
    config = dense() | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    with pytest.raises(SourceError, match=r"quantization_config \(GPTQ\)"):
        planned(write(tmp_path / "m", config))


def test_a_decay_beyond_float32_is_refused(dense, weights, write, tmp_path):
    tensors = weights(dense())
    tensors["model.layers.0.linear_attn.A_log"][1] = 89
    folder = write(tmp_path / "m", dense(), tensors=tensors)
    with pytest.raises(EncodeError, match=r"'blk\.0\.ssm_a' holds -inf"):
        convert(folder, "bf16", tmp_path / "out.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_config_and_weights_that_do_not_belong_together(dense, write, tmp_path):
    folder = write(tmp_path / "m", dense())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 8}))
    with pytest.raises(TensorMismatchError, match="tensors that qwen35 needs are missing"):
        planned(folder)
