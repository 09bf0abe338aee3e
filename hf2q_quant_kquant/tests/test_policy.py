"""The file-level policy: each rule by itself, in the words of llama.cpp src/llama-quant.cpp."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q.errors import EncodeError
from hf2q.plugins import Plugins
from hf2q.types import ModelFacts, TensorChoiceInput
from hf2q_quant_kquant.policy import FALLBACK, allows_quantization, category, fallback, more_bits

PLUGINS = Plugins.load()


def choose(recipe, shapes, **facts):
    tensors = [TensorChoiceInput(name=name, shape=shape, qtype="BF16") for name, shape in shapes.items()]
    facts = {"arch": "test", "n_layer": 8, "n_head": 8, "n_head_kv": 8, "n_expert": 0} | facts
    choices = PLUGINS.recipe(recipe).choose(tensors, ModelFacts(**facts))
    return {tensor.name: choice for tensor, choice in zip(tensors, choices, strict=True)}


def types(recipe, shapes, **facts):
    return {name: choice.qtype for name, choice in choose(recipe, shapes, **facts).items()}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_norm.weight", (64, 64)),
        ("blk.0.ffn_gate_inp.weight", (8, 64)),
        ("blk.0.ssm_conv1d.weight", (64, 4)),
        ("blk.0.ssm_a", (4, 4)),
        ("blk.0.ffn_gate_inp_shexp.weight", (1, 64)),
        ("output_norm.weight", (64,)),
        ("blk.0.ssm_dt.bias", (4, 64)),
    ],
)
def test_what_is_never_quantized(name, shape):
    assert not allows_quantization(name, shape)
    assert types("q4_0", {name: shape}) == {name: "BF16"}


def test_outer_sizes_of_one_do_not_count_but_inner_ones_do():
    assert not allows_quantization("x.weight", (1, 1, 64))
    assert allows_quantization("x.weight", (2, 1, 64))
    assert allows_quantization("x.weight", (64, 1))


def test_tied_embeddings_stand_in_for_the_output():
    shapes = {"token_embd.weight": (64, 256), "blk.0.attn_q.weight": (256, 256)}
    assert types("q4_k_m", shapes)["token_embd.weight"] == "Q6_K"
    assert types("q4_0", shapes)["token_embd.weight"] == "Q6_K"
    assert types("q8_0", shapes)["token_embd.weight"] == "Q8_0"
    untied = shapes | {"output.weight": (64, 256)}
    assert types("q4_k_m", untied) == {
        "token_embd.weight": "Q4_K",
        "blk.0.attn_q.weight": "Q4_K",
        "output.weight": "Q6_K",
    }


def test_output_whose_rows_do_not_fit_is_q8_0():
    assert types("q4_k_m", {"output.weight": (64, 288)}) == {"output.weight": "Q8_0"}


def test_more_bits_schedule_of_q4_k_m():
    shapes = {f"blk.{i}.{name}.weight": (256, 256) for i in range(16) for name in ("attn_v", "ffn_down")}
    chosen = types("q4_k_m", shapes, n_layer=16)
    expected = [i for i in range(16) if i < 2 or i >= 14 or (i - 2) % 3 == 2]
    for name in ("attn_v", "ffn_down"):
        assert [i for i in range(16) if chosen[f"blk.{i}.{name}.weight"] == "Q6_K"] == expected


def test_fused_qkv_counts_as_a_value_projection():
    shapes = {f"blk.{i}.{'attn_qkv' if i % 4 < 3 else 'attn_v'}.weight": (256, 256) for i in range(8)}
    chosen = types("q4_k_m", shapes)
    assert [i for i, name in enumerate(shapes) if chosen[name] == "Q6_K"] == [i for i in range(8) if more_bits(i, 8)]


def test_experts_take_their_layer_from_the_name():
    shapes = {f"blk.{i}.{name}.weight": (4, 256, 256) for i in range(8) for name in ("ffn_down_exps", "ffn_down_shexp")}
    chosen = types("q4_k_m", shapes, n_expert=4)
    for i in range(8):
        for name in ("ffn_down_exps", "ffn_down_shexp"):
            assert chosen[f"blk.{i}.{name}.weight"] == ("Q6_K" if more_bits(i, 8) else "Q4_K")


def test_a_layer_beyond_the_model_is_refused():
    with pytest.raises(EncodeError, match=r"blk\.8\.ffn_down_exps"):
        types("q4_k_m", {"blk.8.ffn_down_exps.weight": (4, 256, 256)}, n_expert=4)


def test_eight_experts():
    shapes = {f"blk.3.{name}.weight": (256, 256) for name in ("attn_v", "attn_k", "attn_q", "attn_output")}
    assert list(types("q4_k_m", shapes, n_expert=8).values()) == ["Q8_0", "Q8_0", "Q4_K", "Q5_K"]
    assert list(types("q6_k", shapes, n_expert=8).values()) == ["Q8_0", "Q8_0", "Q6_K", "Q6_K"]


@pytest.mark.parametrize(("wanted", "instead"), sorted(FALLBACK.items()))
def test_fallback_to_blocks_of_32(wanted, instead):
    assert fallback(wanted, 512) == wanted
    assert fallback(wanted, 96) == instead
    assert fallback(wanted, 40) == "F16"


def test_fallback_is_reported():
    choice = choose("q4_k_m", {"blk.1.attn_q.weight": (256, 96), "output.weight": (4, 256)})["blk.1.attn_q.weight"]
    assert (choice.qtype, choice.fallback_from) == ("Q5_0", "Q4_K")
    assert "96" in choice.reason


@given(st.integers(1, 200))
def test_more_bits_covers_both_ends(n):
    chosen = [more_bits(i, n) for i in range(n)]
    assert all(chosen[: n // 8])
    assert all(chosen[7 * n // 8 :])


@given(st.text(max_size=40))
def test_every_name_has_a_category(name):
    assert category(name) in {
        "output", "token_embd", "attn_v", "attn_k", "attn_q", "attn_output", "ffn_up", "ffn_gate", "ffn_down", "other"
    }  # fmt: skip


def test_names_and_aliases():
    assert PLUGINS.recipe("Q4_K_M") is PLUGINS.recipe("q4_k_m") is PLUGINS.recipe("q4_k")
