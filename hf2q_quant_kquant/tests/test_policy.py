"""The standard mixes: each rule by itself, in the words of llama.cpp src/llama-quant.cpp."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q.errors import TensorMismatchError, UsageError
from hf2q.plugins import Plugins
from hf2q.types import ModelFacts, PolicyOptions, TensorChoiceInput
from hf2q_quant_kquant import RECIPES
from hf2q_quant_kquant.mixes import FALCON, MIXES, more_bits

PLUGINS = Plugins.load()
NEED = {"q2_k_s", "iq3_xs", "iq3_xxs", "iq2_s", "iq2_m"}


def choose(recipe, shapes, imatrix=False, **facts):
    tensors = [TensorChoiceInput(name=name, shape=shape, qtype="BF16") for name, shape in shapes.items()]
    facts = {"arch": "test", "n_layer": 8, "n_head": 8, "n_head_kv": 8, "n_expert": 0} | facts
    choices = PLUGINS.recipe(recipe).choose(tensors, ModelFacts(**facts), PolicyOptions(has_imatrix=imatrix))
    return {tensor.name: choice for tensor, choice in zip(tensors, choices, strict=True)}


def types(recipe, shapes, **facts):
    return {name: choice.qtype for name, choice in choose(recipe, shapes, **facts).items()}


def test_tied_embeddings_stand_in_for_the_output():
    shapes = {"token_embd.weight": (64, 256), "blk.0.attn_q.weight": (256, 256)}
    assert types("q4_k_m", shapes)["token_embd.weight"] == "Q6_K"
    assert types("q4_0", shapes)["token_embd.weight"] == "Q6_K"
    assert types("q8_0", shapes)["token_embd.weight"] == "Q8_0"
    assert types("iq2_m", shapes, imatrix=True)["token_embd.weight"] == "Q5_K"
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


@pytest.mark.parametrize("name", ["blk.8.ffn_down_exps.weight", "blk.8.ffn_up_exps.weight", "mtp.ffn_gate.weight"])
def test_a_layer_beyond_the_model_is_refused(name):
    with pytest.raises(TensorMismatchError, match=name):
        types("q4_k_m", {name: (4, 256, 256)}, n_expert=4)


def test_eight_experts():
    shapes = {f"blk.3.{name}.weight": (256, 256) for name in ("attn_v", "attn_k", "attn_q", "attn_output")}
    assert list(types("q4_k_m", shapes, n_expert=8).values()) == ["Q8_0", "Q8_0", "Q4_K", "Q5_K"]
    assert list(types("q6_k", shapes, n_expert=8).values()) == ["Q8_0", "Q8_0", "Q6_K", "Q6_K"]
    assert list(types("q3_k_l", shapes, n_expert=8).values()) == ["Q8_0", "Q8_0", "Q3_K", "Q3_K"]
    small = types("iq2_m", shapes, n_expert=8, imatrix=True)
    assert list(small.values()) == ["Q4_K", "Q4_K", "IQ2_S", "Q5_K"]


def test_an_importance_matrix_changes_what_the_first_layers_get():
    shapes = {f"blk.{i}.ffn_down.weight": (256, 256) for i in range(8)}
    first, last = "blk.0.ffn_down.weight", "blk.7.ffn_down.weight"
    for recipe, blind, seeing in (("q4_0", "Q4_0", "Q4_1"), ("q5_0", "Q5_0", "Q5_1"), ("iq4_xs", "Q5_K", "IQ4_XS")):
        without, given = types(recipe, shapes), types(recipe, shapes, imatrix=True)
        assert (without[first], given[first]) == (blind, seeing)
        assert without[last] == given[last] == PLUGINS.recipe(recipe).default


@pytest.mark.parametrize("recipe", sorted(NEED))
def test_the_smallest_mixes_need_importance(recipe):
    shapes = {f"blk.{i}.{name}.weight": (256, 256) for i in range(8) for name in ("attn_q", "ffn_up")}
    with pytest.raises(UsageError, match=rf"{recipe} gives blk\.\d\.\w+\.weight the type I?Q") as caught:
        choose(recipe, shapes)
    assert "--imatrix" in caught.value.hint
    assert any(choice.needs_importance for choice in choose(recipe, shapes, imatrix=True).values())


@pytest.mark.parametrize("recipe", sorted({row[0] for row in RECIPES} - NEED))
def test_no_other_mix_needs_it(recipe):
    shapes = {f"blk.{i}.{name}.weight": (256, 256) for i in range(8) for name in ("attn_q", "attn_v", "ffn_down")}
    assert not any(choice.needs_importance for choice in choose(recipe, shapes).values())


def test_70b_models_have_small_value_projections():
    shapes = {f"blk.{i}.attn_v.weight": (256, 256) for i in range(80)}
    facts = {"arch": "llama", "n_layer": 80, "n_head": 64}
    assert set(types("q3_k_s", shapes, n_head_kv=8, **facts).values()) == {"Q5_K"}
    assert set(types("q3_k_s", shapes, n_head_kv=64, **facts).values()) == {"Q3_K"}
    assert set(types("q3_k_s", shapes, n_head_kv=64, **facts | {"arch": "qwen2"}).values()) == {"Q5_K"}
    assert set(types("q3_k_s", shapes, n_head_kv=8, **facts | {"n_layer": 79}).values()) == {"Q3_K"}


def test_glm5_next_keeps_low_rank_projections_large():
    shapes = {f"blk.0.{name}.weight": (256, 256) for name in ("attn_q_a", "attn_q_b", "nextn.eh_proj", "attn_q")}
    assert list(types("q4_k_m", shapes, arch="glm5-next").values()) == ["Q8_0", "Q8_0", "Q8_0", "Q4_K"]
    assert set(types("q4_k_m", shapes).values()) == {"Q4_K"}


def test_reasons_say_which_rule():
    shapes = {"blk.0.attn_v.weight": (256, 256), "blk.0.ffn_down.weight": (256, 256), "blk.0.attn_q.weight": (256, 96)}
    reasons = [choice.reason for choice in choose("q4_k_m", shapes | {"output.weight": (64, 256)}).values()]
    assert reasons == [
        "attention value 1 of 1: more bits",
        "ffn_down of layer 0 of 8: more bits",
        "default of q4_k_m; rows of 96 are no multiple of 256, so Q4_K gives way to Q5_0",
        "output",
    ]
    assert choose("q3_k_l", shapes)["blk.0.attn_v.weight"].reason == "attention value 1 of 1 in q3_k_l"


@given(st.integers(1, 200))
def test_more_bits_covers_both_ends(n):
    chosen = [more_bits(i, n) for i in range(n)]
    assert all(chosen[: n // 8])
    assert all(chosen[7 * n // 8 :])


def test_every_row_of_the_tables_belongs_to_a_recipe_and_a_type():
    recipes = {row[0] for row in RECIPES}
    for mixes in (MIXES, FALCON):
        for rows in mixes.values():
            assert set(rows) <= recipes


def test_names_and_aliases():
    assert PLUGINS.recipe("Q4_K_M") is PLUGINS.recipe("q4_k_m") is PLUGINS.recipe("q4_k")
    assert PLUGINS.recipe("q3_k").name == "q3_k_m"
    assert PLUGINS.recipe("Q5_K").name == "q5_k_m"
    assert len({row[1] for row in RECIPES}) == len(RECIPES)
