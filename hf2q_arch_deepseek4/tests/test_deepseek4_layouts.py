"""Checkpoints of every layout become the same GGUF tensors; ``auto`` keeps the published types."""

import deepseek4_layouts as layouts
import gguf
import numpy as np
import pytest

from hf2q.convert import convert
from hf2q.errors import TensorMismatchError
from hf2q.formats.gguf import open_gguf
from hf2q.types import PolicyOptions

PLACES = {  # GGUF name -> published name
    "token_embd.weight": "embed.weight",
    "output.weight": "head.weight",
    "output_norm.weight": "norm.weight",
    "output_hc_fn.weight": "hc_head_fn",
    "blk.0.attn_sinks.weight": "layers.0.attn.attn_sink",
    "blk.0.attn_q_b.weight": "layers.0.attn.wq_b.weight",
    "blk.1.attn_kv_a_norm.weight": "layers.1.attn.kv_norm.weight",
    "blk.1.attn_compressor_kv.weight": "layers.1.attn.compressor.wkv.weight",
    "blk.1.attn_compressor_norm.weight": "layers.1.attn.compressor.norm.weight",
    "blk.2.attn_compressor_ape.weight": "layers.2.attn.compressor.ape",
    "blk.3.indexer_compressor_gate.weight": "layers.3.attn.indexer.compressor.wgate.weight",
    "blk.3.indexer_compressor_norm.weight": "layers.3.attn.indexer.compressor.norm.weight",
    "blk.3.indexer.proj.weight": "layers.3.attn.indexer.weights_proj.weight",
    "blk.3.indexer.attn_q_b.weight": "layers.3.attn.indexer.wq_b.weight",
    "blk.3.exp_probs_b.bias": "layers.3.ffn.gate.bias",
    "blk.0.hc_attn_scale.weight": "layers.0.hc_attn_scale",
    "blk.2.ffn_down_shexp.weight": "layers.2.ffn.shared_experts.w2.weight",
}


def converted(folder, layout, recipe, **options):
    made = layouts.write(folder / layout, layout, **options)
    convert(folder / layout, recipe, folder / "m.gguf", force=True, threads=1)
    return made, open_gguf(folder / "m.gguf")


def values(file, name):
    return file.rows(name).view(np.float32).reshape(file.tensors[name].shape)


@pytest.mark.parametrize("layout", list(layouts.LAYOUTS))
def test_every_layout_gives_the_exact_values(tmp_path, layout):
    made, file = converted(tmp_path, layout, "f32")
    with file:
        assert not any("nextn" in name or name.startswith("blk.4.") for name in file.tensors)
        assert len(file.tensors) == 126
        for name, source in PLACES.items():
            assert np.array_equal(values(file, name), made[source].values), name
        for part, own in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
            for i in range(4):
                stack = values(file, f"blk.{i}.ffn_{part}_exps.weight")
                for e, expert in enumerate(stack):
                    assert np.array_equal(expert, made[f"layers.{i}.ffn.experts.{e}.{own}.weight"].values)
        table = file.rows("blk.1.ffn_gate_tid2eid.weight").view(np.int32).reshape(272, 2)
        assert file.tensors["blk.1.ffn_gate_tid2eid.weight"].qtype == "I32"
        assert np.array_equal(table, made["layers.1.ffn.gate.tid2eid"].values)


@pytest.mark.parametrize("layout", list(layouts.LAYOUTS))
def test_metadata_is_the_same_for_every_layout(tmp_path, layout):
    _, file = converted(tmp_path, layout, "bf16")
    with file:
        found = {key: file.metadata[key] for key in file.keys_in_order}
    assert found["deepseek4.attention.compress_ratios"][:4] == (0, 4, 128, 4)
    assert found["deepseek4.hash_layer_count"] == 2
    assert found["deepseek4.rope.dimension_count"] == 8
    assert found["deepseek4.rope.scaling.type"] == "yarn"
    assert found["deepseek4.embedding_length_out"] == 256
    assert found["tokenizer.ggml.pre"] == "joyai-llm"
    assert "tokenizer.chat_template" not in found


def test_auto_keeps_the_published_types(tmp_path):
    made, file = converted(tmp_path, "published", "auto", template="{{ messages }}")
    with file:
        assert file.keys_in_order[:3] == ("general.architecture", "tokenizer.chat_template", "general.type")
        assert file.metadata["general.file_type"] == 38
        names = list(file.tensors)
        experts = [f"blk.{i}.ffn_{part}_exps.weight" for i in range(4) for part in ("gate", "down", "up")]
        assert names[:14] == [f"blk.{i}.ffn_gate_tid2eid.weight" for i in range(2)] + experts
        types = {name: tensor.qtype for name, tensor in file.tensors.items()}
        assert {types[name] for name in experts} == {"MXFP4"}
        for name, source in PLACES.items():
            t = made[source]
            narrow = "F32" if len(t.shape) == 1 else {"FP8": "Q8_0"}.get(t.kind, t.kind)
            # 80 and 48 columns are no whole blocks of 32
            assert types[name] == narrow, name
        assert types["blk.0.attn_output_a.weight"] == types["blk.0.attn_output_b.weight"] == "F16"
        assert types["blk.0.ffn_gate_inp.weight"] == types["blk.1.indexer.proj.weight"] == "BF16"
        for part, own in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
            blocks = file.rows(f"blk.2.ffn_{part}_exps.weight")
            stack = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4).reshape(
                3, *made[f"layers.2.ffn.experts.0.{own}.weight"].shape
            )
            for e in range(3):
                t = made[f"layers.2.ffn.experts.{e}.{own}.weight"]
                assert np.array_equal(stack[e], t.values)
            scales = blocks.reshape(-1, 17)[:, 0].reshape(3, -1)
            assert np.array_equal(scales[0], made[f"layers.2.ffn.experts.0.{own}.weight"].scale.reshape(-1))


@pytest.mark.parametrize(
    ("layout", "ftype", "experts"), [("base", 7, "Q8_0"), ("bf16", 32, "BF16"), ("saved", 32, "BF16")]
)
def test_auto_of_other_layouts(tmp_path, layout, ftype, experts):
    _, file = converted(tmp_path, layout, "auto")
    with file:
        assert file.metadata["general.file_type"] == ftype
        assert file.tensors["blk.0.ffn_up_exps.weight"].qtype == experts
        assert file.tensors["blk.0.ffn_gate_inp.weight"].qtype == "BF16"
        # transformers saves these in 16 bits; the published ones are float32
        assert file.tensors["blk.0.hc_attn_fn.weight"].qtype == "F32"


def test_experts_asked_for_as_mxfp4_are_repacked(tmp_path):
    layouts.write(tmp_path / "published", "published")
    convert(tmp_path / "published", "auto", tmp_path / "a.gguf")
    options = PolicyOptions(tensor_types=(("exps", "MXFP4"),))
    summary = convert(tmp_path / "published", "q8_0", tmp_path / "b.gguf", options=options)
    with open_gguf(tmp_path / "a.gguf") as a, open_gguf(tmp_path / "b.gguf") as b:
        for tensor in summary.plan.tensors:
            assert tensor.copied == ("exps" in tensor.name)
            if tensor.copied:
                assert np.array_equal(a.rows(tensor.name), b.rows(tensor.name))


def test_what_is_left_out_has_a_reason(tmp_path):
    def more(files):
        files["image_newline"] = layouts.plain(np.zeros(64, np.float32), "F32")
        files["aligner.w1.weight"] = layouts.plain(np.zeros((4, 4), np.float32), "F32")
        files["layers.0.ffn.gate.bias"] = layouts.plain(np.zeros(3, np.float32), "F32")

    layouts.write(tmp_path / "m", "published", change=more)
    ignored = dict(convert(tmp_path / "m", "auto", tmp_path / "m.gguf", dry_run=True).plan.ignored)
    assert "token id" in ignored["layers.0.ffn.gate.bias"]
    assert "vision" in ignored["image_newline"]
    assert "vision" in ignored["aligner.w1.weight"]
    assert "multi-token" in ignored["mtp.0.e_proj.weight"]
    assert "layers.2.ffn.gate.bias" not in ignored


@pytest.mark.parametrize("layout", ["published", "base", "bf16"])
def test_a_missing_expert_is_named(tmp_path, layout):
    def fewer(files):
        for part in ("weight", "scale"):
            files.pop(f"layers.1.ffn.experts.2.w3.{part}", None)

    layouts.write(tmp_path / "m", layout, change=fewer)
    with pytest.raises(TensorMismatchError, match=r"blk\.1\.ffn_up_exps\.weight \(from layers\.1\.ffn\.experts\.2\.w3"):
        convert(tmp_path / "m", "auto", tmp_path / "m.gguf")


def test_routing_to_an_expert_that_there_is_not_is_refused(tmp_path):
    def wrong(files):
        table = np.zeros((272, 2), np.int64)
        table[7, 1] = 3
        files["layers.1.ffn.gate.tid2eid"] = layouts.plain(table, "TABLE")

    layouts.write(tmp_path / "m", "published", change=wrong)
    with pytest.raises(TensorMismatchError, match="token 7 is sent to expert 3, expected 0 to 2"):
        convert(tmp_path / "m", "auto", tmp_path / "m.gguf", threads=1)
    assert not (tmp_path / "m.gguf").exists()
