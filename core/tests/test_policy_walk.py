"""What all recipes share: which tensors are quantized, in which order options count, what stands in by shape."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q.errors import UsageError
from hf2q.formats.ggml_types import GGML_TYPES
from hf2q.plugins import Plugins
from hf2q.policy import FALLBACK, choose_types, fallback, role_of, why_kept
from hf2q.types import ModelFacts, PolicyOptions, Recipe, TensorChoiceInput

PLUGINS = Plugins.load(only=[])
FACTS = ModelFacts(arch="any", n_layer=4)


def walk(shapes, *, default="Q4_K", ftype=15, mixed="Q5_K", **options):
    """Choices by name; the mix gives every tensor `mixed`, and the names that it was asked for are under None."""
    asked = []
    recipe = Recipe(name="mine", ftype=ftype, default=default, policy="", quantizes=True)
    tensors = [TensorChoiceInput(name=name, shape=shape, qtype="BF16") for name, shape in shapes.items()]

    def mix(tensor):
        asked.append(tensor.name)
        return mixed, "the mix"

    choices = list(choose_types(recipe, tensors, FACTS, PolicyOptions(**options), mix))
    return dict(zip(shapes, choices, strict=True)) | {None: asked}


def qtypes(shapes, **given):
    return [choice.qtype for name, choice in walk(shapes, **given).items() if name]


MODEL = {
    "token_embd.weight": (8, 256),
    "output.weight": (8, 256),
    "output_norm.weight": (256,),
    "blk.0.attn_v.weight": (8, 256),
    "blk.1.attn_v.weight": (8, 256),
}
TIED = {name: shape for name, shape in MODEL.items() if name != "output.weight"}


@pytest.mark.parametrize(
    ("name", "shape", "why"),
    [
        ("blk.0.attn_norm.weight", (64, 64), "_norm.weight is never quantized"),
        ("blk.0.ffn_gate_inp.weight", (8, 64), "ffn_gate_inp.weight is never quantized"),
        ("blk.0.ssm_conv1d.weight", (64, 4), "ssm_conv1d is never quantized"),
        ("token_types.weight", (2, 64), "token_types.weight is never quantized"),
        ("blk.0.ssm_a", (4, 4), "not a weight"),
        ("v.patch_embd.weight.1", (4, 4), "not a weight"),
        ("blk.0.ssm_dt.bias", (4, 64), "not a weight"),
        ("blk.0.ffn_gate_inp_shexp.weight", (1, 64), "one-dimensional"),
        ("output_norm.weight", (64,), "one-dimensional"),
    ],
)
def test_what_is_never_quantized(name, shape, why):
    assert why_kept(name, shape) == why
    choice = walk({name: shape}, pure=True)[name]
    assert (choice.qtype, choice.reason) == ("BF16", why)


def test_outer_sizes_of_one_do_not_count_but_inner_ones_do():
    assert why_kept("x.weight", (1, 1, 64))
    assert not why_kept("x.weight", (2, 1, 64))
    assert not why_kept("x.weight", (64, 1))


def test_single_archs_keep_more():
    assert not why_kept("blk.0.attn_k_b.weight", (4, 8, 64))
    assert why_kept("blk.0.attn_k_b.weight", (4, 8, 64), "glm5-next")


@given(st.text(max_size=40))
def test_every_name_has_a_role(name):
    assert role_of(name) in {
        "output", "token_embd", "attn_v", "attn_k", "attn_q", "attn_output", "ffn_up", "ffn_gate", "ffn_down", "other"
    }  # fmt: skip


def test_roles_are_found_in_the_order_of_the_reference():
    assert role_of("output.weight") == "output"
    assert role_of("per_layer_token_embd.weight") == "token_embd"
    assert role_of("blk.0.attn_qkv.weight") == role_of("blk.0.attn_kv_b.weight") == "attn_v"
    assert role_of("blk.0.ffn_gate_up_exps.weight") == "ffn_gate"
    assert role_of("blk.0.ffn_up_gate.weight") == "ffn_up"
    assert role_of("blk.0.attn_q_a.weight") == "other"


def test_without_options_the_mix_decides():
    assert qtypes(MODEL) == ["Q5_K", "Q5_K", "BF16", "Q5_K", "Q5_K"]
    assert walk(MODEL)[None] == [name for name in MODEL if name != "output_norm.weight"]


def test_pure_asks_no_mix():
    found = walk(MODEL, pure=True)
    assert [choice.qtype for name, choice in found.items() if name] == ["Q4_K", "Q4_K", "BF16", "Q4_K", "Q4_K"]
    assert found[None] == []
    assert found["token_embd.weight"].reason == "--pure"


def test_the_first_pattern_decides_and_the_mix_is_not_asked():
    patterns = (("BLK.0", "Q6_K"), (r"attn_v\.", "Q8_0"))
    found = walk(MODEL, tensor_types=patterns, pure=True)
    assert found["blk.0.attn_v.weight"].qtype == "Q6_K"
    assert found["blk.0.attn_v.weight"].reason == "--tensor-type BLK.0=Q6_K"
    assert found["blk.1.attn_v.weight"].qtype == "Q8_0"
    assert walk(MODEL, tensor_types=patterns)[None] == ["token_embd.weight", "output.weight"]


def test_types_of_output_and_embeddings_win_over_patterns():
    types = {"output_tensor_type": "Q8_0", "token_embedding_type": "Q6_K", "tensor_types": (("weight", "Q2_K"),)}
    assert qtypes(MODEL, **types) == ["Q6_K", "Q8_0", "BF16", "Q2_K", "Q2_K"]


def test_a_pattern_may_name_per_layer_embeddings():
    shapes = {"token_embd.weight": (8, 256), "per_layer_token_embd.weight": (8, 256)}
    assert qtypes(shapes, token_embedding_type="Q8_0") == ["Q8_0", "Q8_0"]
    named = {"token_embedding_type": "Q8_0", "tensor_types": (("token_embd", "Q5_1"),)}
    assert qtypes(shapes, **named) == ["Q8_0", "Q5_1"]


def test_tied_embeddings_take_the_type_of_the_output_from_the_mix_only():
    assert qtypes(TIED, output_tensor_type="Q8_0")[0] == "Q8_0"
    assert qtypes(TIED, output_tensor_type="Q8_0", pure=True)[0] == "Q4_K"
    assert qtypes(TIED, output_tensor_type="Q8_0", tensor_types=(("token", "Q6_K"),))[0] == "Q6_K"
    assert qtypes(TIED, output_tensor_type="Q8_0", token_embedding_type="Q5_1")[0] == "Q5_1"
    assert qtypes(MODEL, output_tensor_type="Q8_0")[0] == "Q5_K"


def test_the_output_may_be_left():
    choice = walk(MODEL, leave_output_tensor=True)["output.weight"]
    assert (choice.qtype, choice.reason) == ("BF16", "--leave-output-tensor")
    with pytest.raises(UsageError, match="contradict"):
        walk(MODEL, leave_output_tensor=True, output_tensor_type="Q8_0")


def test_recipes_of_floats_give_every_tensor_the_default():
    assert qtypes(MODEL, default="F16") == ["F16", "F16", "BF16", "F16", "F16"]
    assert qtypes(MODEL, default="F16", token_embedding_type="Q8_0", output_tensor_type="Q6_K")[:2] == ["Q8_0", "Q6_K"]


@pytest.mark.parametrize(("wanted", "instead"), sorted(FALLBACK.items()))
def test_types_that_do_not_fit_give_way(wanted, instead):
    assert fallback(wanted, 512) == wanted
    assert fallback(wanted, 96) == instead
    assert fallback(wanted, 40) == "F16"


def test_every_type_has_somewhere_to_go_or_is_refused():
    for name, kind in GGML_TYPES.items():
        if kind.block_size <= 32:
            assert fallback(name, 40) == (name if kind.block_size == 1 else "F16")
        elif name not in FALLBACK:
            with pytest.raises(UsageError, match=f"no whole blocks of {name}"):
                fallback(name, 40)


@pytest.mark.parametrize("options", [{}, {"pure": True}, {"tensor_types": (("attn_q", "Q5_K"),)}])
def test_shapes_count_whoever_chose(options):
    choice = walk({"blk.1.attn_q.weight": (256, 96), "output.weight": (4, 256)}, **options)["blk.1.attn_q.weight"]
    wanted = "Q4_K" if options.get("pure") else "Q5_K"
    assert (choice.qtype, choice.fallback_from) == (FALLBACK[wanted], wanted)
    assert f"rows of 96 are no multiple of 256, so {wanted} gives way" in choice.reason


def test_an_exact_type_that_does_not_fit_is_refused():
    with pytest.raises(UsageError, match=r"--output-tensor-type Q4_K: output.weight has rows of 96"):
        walk({"output.weight": (4, 96)}, output_tensor_type="Q4_K")


def test_importance_is_asked_for_where_it_is_needed():
    with pytest.raises(UsageError, match=r"gives blk.0.attn_v.weight the type IQ2_S \(the mix\)"):
        walk(MODEL, mixed="IQ2_S")
    found = walk(MODEL, mixed="IQ2_S", has_imatrix=True)
    assert [name for name, choice in found.items() if name and choice.needs_importance] == [
        "blk.0.attn_v.weight",
        "blk.1.attn_v.weight",
    ]
    assert not walk(MODEL, mixed="Q2_K")["blk.0.attn_v.weight"].needs_importance
    with pytest.raises(UsageError, match="Q2_K"):
        walk(MODEL, mixed="Q2_K", ftype=21)


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({"tensor_types": (("attn_w", "Q8_0"),)}, "--tensor-type attn_w=Q8_0"),
        ({"tensor_types": (("norm", "Q8_0"),)}, "--tensor-type norm=Q8_0"),
        ({"tensor_types": (("v", "Q8_0"), ("attn_v", "Q6_K"))}, "--tensor-type attn_v=Q6_K"),
        ({"output_tensor_type": "Q8_0", "pure": True}, "--output-tensor-type Q8_0"),
        ({"leave_output_tensor": True}, "--leave-output-tensor"),
    ],
)
def test_options_that_decide_nothing_are_told(options, label, caplog):
    walk(TIED, **options)
    assert [record.getMessage() for record in caplog.records] == [
        f"{label} decides the type of no tensor in this model"
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        walk(MODEL, output_tensor_type="q8_0", token_embedding_type="q8_0", tensor_types=(("attn_v", "q8_0"),))
    assert not caplog.records


def test_the_float_recipes_of_core_follow_no_option():
    recipe = PLUGINS.recipe("f16")
    tensors = [TensorChoiceInput(name="output.weight", shape=(4, 32), qtype="F16")]
    assert recipe.choose(tensors, FACTS)[0].qtype == "F16"
    with pytest.raises(UsageError, match=r"--quant f16 quantizes nothing.* --pure and --tensor-type a=Q8_0"):
        recipe.choose(tensors, FACTS, PolicyOptions(pure=True, tensor_types=(("a", "Q8_0"),)))
    with pytest.raises(UsageError, match="--imatrix"):
        recipe.choose(tensors, FACTS, PolicyOptions(has_imatrix=True))
