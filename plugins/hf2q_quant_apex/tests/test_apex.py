"""The tables of the tiers against the published description, region by region; errors; files of tiny models."""

import logging

import pytest

from hf2q.errors import TensorMismatchError, UnknownNameError, UsageError
from hf2q.plugins import Plugins
from hf2q.types import ModelFacts, PolicyOptions, TensorChoiceInput
from hf2q_quant_apex import RECIPES
from hf2q_quant_apex.published import MODELS, fingerprint
from hf2q_quant_apex.roles import region_of, role_of

PLUGINS = Plugins.load()
NAMES = [name for name, *_ in RECIPES]
GEMMA = ModelFacts(
    arch="gemma4", n_layer=30, n_head=16, n_head_kv=8, n_expert=128, n_embd=2816, n_ff=2112, n_ff_expert=704
)
QWEN = ModelFacts(
    arch="qwen35moe", n_layer=40, n_head=16, n_head_kv=2, n_expert=256, n_embd=2048, n_ff=512, n_ff_expert=512
)
QWEN_MTP = ModelFacts(
    arch="qwen35moe", n_layer=41, n_head=16, n_head_kv=2, n_expert=256, n_embd=2048, n_ff_expert=512, n_mtp=1
)
OTHER = ModelFacts(arch="qwen35moe", n_layer=40, n_head=8, n_head_kv=2, n_expert=8, n_embd=256)

TABLE = {
    # tier: experts edge, near, mid; shared edge, mid; attention edge, mid
    "quality": ("Q6_K", "Q5_K", "IQ4_XS", "Q8_0", "Q8_0", "Q6_K", "Q6_K"),
    "balanced": ("Q6_K", "Q5_K", "Q5_K", "Q8_0", "Q8_0", "Q6_K", "Q6_K"),
    "compact": ("Q4_K", "Q3_K", "Q3_K", "Q6_K", "Q6_K", "Q4_K", "Q4_K"),
    "mini": ("Q3_K", "Q3_K", "IQ2_S", "Q5_K", "Q4_K", "Q4_K", "Q3_K"),
}


def types(recipe, facts, names, **options):
    tensors = [TensorChoiceInput(name=name, shape=(256, 256), qtype="BF16") for name in names]
    chosen = PLUGINS.recipe(recipe).choose(tensors, facts, PolicyOptions(has_imatrix=True, **options))
    return [choice.qtype for choice in chosen]


@pytest.mark.parametrize("layers", [4, 9, 10, 11, 19, 20, 21, 30, 40, 41, 62])
def test_regions_as_described(layers):
    """Edge: i <= 4 or i >= L-5; near: i <= 9 or i >= L-10; for all but experts i <= 2 or i >= L-3."""
    for i in range(layers):
        expert = "edge" if i <= 4 or i >= layers - 5 else "near" if i <= 9 or i >= layers - 10 else "mid"
        assert region_of("expert", i, layers) == expert
        assert region_of("shared", i, layers) == ("edge" if i <= 4 or i >= layers - 5 else "mid")
        assert region_of("other", i, layers) == ("edge" if i <= 2 or i >= layers - 3 else "mid")


@pytest.mark.parametrize("recipe", NAMES)
def test_types_of_a_tier(recipe):
    exp_edge, exp_near, exp_mid, sh_edge, sh_mid, edge, mid = TABLE[recipe.removeprefix("apex-").removeprefix("i-")]
    for part in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps"):
        names = [f"blk.{i}.{part}.weight" for i in (0, 4, 5, 9, 10, 29, 30, 34, 35, 39)]
        wanted = [exp_edge] * 2 + [exp_near] * 2 + [exp_mid] * 2 + [exp_near] * 2 + [exp_edge] * 2
        assert types(recipe, OTHER, names) == wanted
    assert types(recipe, OTHER, ["blk.4.ffn_up_shexp.weight", "blk.5.ffn_up_shexp.weight"]) == [sh_edge, sh_mid]
    for part in ("attn_qkv", "attn_q", "attn_output", "attn_gate", "ssm_out", "ssm_alpha", "ffn_down"):
        names = [f"blk.{i}.{part}.weight" for i in (2, 3, 36, 37)]
        assert types(recipe, OTHER, names) == [edge, mid, mid, edge]
    assert types(recipe, OTHER, ["token_embd.weight", "output.weight"]) == ["Q6_K", "Q6_K"]
    kept = ["blk.3.ffn_gate_inp.weight", "blk.3.attn_norm.weight", "blk.3.ssm_conv1d.weight"]
    assert types(recipe, OTHER, kept) == ["BF16"] * 3  # as they came: never quantized


def test_a_gate_of_shared_experts_is_a_router():
    assert role_of("blk.0.ffn_gate_inp_shexp.weight") == "router"
    tensors = [TensorChoiceInput(name="blk.0.ffn_gate_inp_shexp.weight", shape=(1, 256), qtype="F32")]
    [choice] = PLUGINS.recipe("apex-balanced").choose(tensors, OTHER, PolicyOptions())
    assert choice.qtype == "F32"  # one row is one-dimensional


@pytest.mark.parametrize(
    ("facts", "name"), [(GEMMA, "gemma4_26b"), (QWEN, "qwen35a3b"), (QWEN_MTP, "carnice_qwen36_mtp")]
)
def test_published_models_are_known_by_their_sizes(facts, name, caplog):
    assert MODELS[fingerprint(facts)] == name
    with caplog.at_level(logging.INFO, "hf2q_quant_apex"):
        types("apex-compact", facts, ["blk.0.ffn_up_exps.weight"])
    assert f"auto-detected APEX config: {name}_compact" in caplog.text
    assert fingerprint(OTHER) not in MODELS


def test_the_one_list_that_differs():
    names = [f"blk.{i}.ffn_up_exps.weight" for i in (4, 5, 12)]
    assert types("apex-mini", QWEN, names) == ["Q3_K", "IQ2_S", "IQ2_S"]
    assert types("apex-mini", QWEN_MTP, names) == types("apex-mini", OTHER, names) == ["Q3_K", "Q3_K", "IQ2_S"]


def test_the_last_block_of_a_model_with_mtp_is_its_edge():
    assert types("apex-quality", QWEN_MTP, ["blk.40.ffn_up_exps.weight", "blk.40.nextn.eh_proj.weight"]) == [
        "Q6_K",
        "Q6_K",
    ]
    with pytest.raises(TensorMismatchError, match=r"blk\.41.* is of block 41, but the model has 41 blocks"):
        types("apex-quality", QWEN_MTP, ["blk.41.ffn_up_exps.weight"])


@pytest.mark.parametrize(
    ("recipe", "change", "said"),
    [
        ("apex-mini", {"n_expert": 0}, "is for mixtures of experts; this qwen35moe model has no experts"),
        ("apex-mini", {"n_expert": 1}, "has one expert"),
        ("apex-mini", {"arch": "deepseek4"}, "was made for qwen35moe, gemma4, minimax-m2, not for deepseek4"),
    ],
)
def test_models_that_the_tiers_are_not_for(recipe, change, said):
    facts = ModelFacts(**{"arch": "qwen35moe", "n_layer": 40, "n_expert": 8, **change})
    with pytest.raises(UsageError, match=said) as caught:
        types(recipe, facts, ["blk.0.ffn_up_exps.weight"])
    assert "q5_k_m" in caught.value.hint


def test_importance_is_needed_where_the_name_or_a_type_says_so():
    tensors = [TensorChoiceInput(name=f"blk.{i}.ffn_up_exps.weight", shape=(256, 256), qtype="BF16") for i in range(40)]
    for recipe in ("apex-i-quality", "apex-i-balanced", "apex-i-compact"):
        with pytest.raises(UsageError, match="there is no importance matrix") as caught:
            PLUGINS.recipe(recipe).choose(tensors, OTHER, PolicyOptions())
        assert "--imatrix" in caught.value.hint
        assert recipe.replace("-i-", "-") in caught.value.hint
    with pytest.raises(UsageError, match=r"IQ2_S.*unless the importance"):
        PLUGINS.recipe("apex-mini").choose(tensors, OTHER, PolicyOptions())
    for recipe in ("apex-quality", "apex-balanced", "apex-compact"):
        assert PLUGINS.recipe(recipe).choose(tensors, OTHER, PolicyOptions())


@pytest.mark.parametrize("name", ["apex", "apex-custom", "apex-nano", "apex-i-micro", "apex-x"])
def test_names_that_are_no_tier_say_what_to_do(name):
    with pytest.raises(UnknownNameError) as caught:
        PLUGINS.recipe(name)
    assert caught.value.hint
