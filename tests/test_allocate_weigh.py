"""What a loss counts before anything is measured: by how often a tensor is used; and mixes as choices to beat."""

import pytest

from hf2q.plugins import Plugins
from hf2q.quality.allocate.budget import parse_budget
from hf2q.quality.allocate.choose import WITH_TEXT, by_text, by_weights, close, contest, loss_of, rivals_of, solved
from hf2q.quality.allocate.found import Chosen, Tried
from hf2q.quality.allocate.mixes import facts_of, fixed_mixes, picks_of
from hf2q.quality.allocate.weigh import tensor_weights
from hf2q.types import MetadataField, Plan, TensorChoiceInput, TensorPlan


def plan_of(names, **keys):
    fields = [
        MetadataField.u32(f"gemma4.{key}", value)
        if isinstance(value, int)
        else MetadataField.array(f"gemma4.{key}", "bool", value)
        for key, value in keys.items()
    ]
    tensors = tuple(
        TensorPlan(name=name, shape=(256, 256), qtype="Q8_0", via="F32", reason="", nbytes=0, offset=0, inputs=())
        for name in names
    )
    return Plan(arch="gemma4", recipe="q8_0", via="f32", metadata=tuple(fields), tensors=tensors)


def weights_of(plan):
    return dict(zip((tensor.name for tensor in plan.tensors), tensor_weights(plan), strict=True))


def blocks_of(count, *kinds):
    return [f"blk.{block}.{kind}.weight" for block in range(count) for kind in kinds]


def test_keys_and_values_count_as_often_as_they_are_read():
    names = blocks_of(8, "attn_q", "attn_k", "attn_v")
    keys = {"attention.shared_kv_layers": 4, "attention.sliding_window_pattern": (True, True, True, False) * 2}
    found = weights_of(plan_of(names, block_count=8, **keys))
    for kind in ("attn_k", "attn_v"):
        assert [16 * found[f"blk.{block}.{kind}.weight"] for block in range(8)] == [1, 1, 4, 2, 0, 0, 0, 0]
    assert {16 * found[f"blk.{block}.attn_q.weight"] for block in range(8)} == {1}
    alike = weights_of(plan_of(names, block_count=8, **{"attention.shared_kv_layers": 4}))
    assert [16 * alike[f"blk.{block}.attn_k.weight"] for block in range(8)] == [1, 1, 1, 5, 0, 0, 0, 0]


def test_keys_that_are_values_too_count_twice():
    found = weights_of(plan_of([*blocks_of(2, "attn_k"), "blk.0.attn_v.weight"], block_count=2))
    assert found["blk.0.attn_k.weight"] == found["blk.0.attn_v.weight"] == 1 / 4
    assert found["blk.1.attn_k.weight"] == 1 / 2


def test_inputs_of_blocks_are_a_third_product():
    names = ["token_embd.weight", "per_layer_token_embd.weight", *blocks_of(8, "proj", "ffn_up")]
    found = weights_of(plan_of(names, block_count=8, embedding_length_per_layer_input=64))
    assert found["blk.0.proj.weight"] == found["blk.7.ffn_up.weight"] == 1 / 24
    assert found["per_layer_token_embd.weight"] == pytest.approx(1 / 3)
    assert found["token_embd.weight"] == 2


# -------------------------------------------------------------------------------------------------- mixes as choices


TENSORS = [
    TensorChoiceInput(name=name, shape=(512, 256), qtype="BF16")
    for name in ("token_embd.weight", *blocks_of(2, "attn_v", "ffn_down"))
] + [TensorChoiceInput(name="output_norm.weight", shape=(256,), qtype="F32")]


@pytest.fixture(scope="module")
def mixes():
    plan = plan_of([], block_count=2, embedding_length=256)
    return fixed_mixes(TENSORS, facts_of(plan), Plugins.load(), has_imatrix=False)


def test_mixes_are_those_that_the_model_can_have(mixes):
    assert {"q4_0", "q4_k_m", "q6_k", "q8_0", "iq4_xs"} <= mixes.keys()
    assert not {"apex-mini", "iq2_m", "f16"} & mixes.keys()  # for experts; needs a matrix; quantizes nothing
    assert mixes["q6_k"] == ("Q6_K",) * 5 + ("F32",)


def test_a_mix_is_a_choice_when_all_its_types_are_tried(mixes):
    tried = [("Q3_K", "IQ3_S", "Q4_K", "Q6_K")] * 5 + [("F32",)]
    assert picks_of(mixes["q6_k"], tried) == (3, 3, 3, 3, 3, 0)
    assert picks_of(("IQ3_S", "Q3_K", "Q4_K", "Q6_K", "IQ3_S", "F32"), tried) == (1, 0, 2, 3, 1, 0)
    assert picks_of(mixes["q4_0"], tried) is None


def chosen(name, qtype, nbytes, loss):
    tried = (Tried(qtype=qtype, nbytes=nbytes, loss=loss),)
    return Chosen(name=name, shape=(1, 256), qtype=qtype, nbytes=nbytes, loss=loss, weight=0.5, tried=tried)


TABLE = [tuple(chosen(name, f"Q{n}", n * 10 + 1, 4.0**-n) for n in range(2, 7)) for name in ("a", "b")]


@pytest.mark.parametrize(("asked", "room"), [("auto-bpw=1", 102), ("auto-size=9", 96)])
def test_mixes_within_the_budget_are_never_better_than_the_choice(asked, room):
    budget = parse_budget(asked)
    every = {f"{a}{b}": (a, b) for a in range(5) for b in range(5)}
    rivals = rivals_of(TABLE, every, budget, room)
    assert {one.name for one in rivals} == (
        {name for name, picks in every.items() if sum(picks) <= 6}
        if budget.kind == "bpw"
        else {name for name, picks in every.items() if sum(1 + (pick > 1) for pick in picks) <= 3}
    )
    assert list(rivals) == sorted(rivals, key=lambda one: one.loss)
    solution = solved(TABLE, budget, room, 512, every.values())
    assert solution.error == loss_of(TABLE, solution.picks) <= rivals[0].loss
    near = list(close(rivals, solution.error))
    assert near
    assert len(near) < len(rivals)


def test_the_best_by_predictions_is_found_and_equal_choices_are_run_once():
    run = []

    def diverge(what, types):
        run.append((what, types))
        return 0.5 if types == {"a": "Q4", "b": "Q4"} else 1.0

    found = contest(TABLE, {"the search": (1, 3), "mix": (2, 2), "again": (1, 3)}, diverge, None)
    assert found == {"the search": 1.0, "mix": 0.5, "again": 1.0}
    assert [types for _, types in run] == [{"a": "Q3", "b": "Q5"}, {"a": "Q4", "b": "Q4"}]


@pytest.mark.parametrize("best", [WITH_TEXT, "mix"])
def test_with_a_text_what_counts_is_measured_and_the_best_choice_is_taken(best):
    budget, mixes = parse_budget("auto-bpw=1"), {"mix": (4, 2), "large": (4, 4)}

    def diverge(what, types):
        if best == "mix" and types == {"a": "Q6", "b": "Q4"}:
            return 0.0
        return sum({"a": 3.0, "b": 1.0}[name] * 4.0 ** -int(qtype[1:]) for name, qtype in types.items())

    before = by_weights(TABLE, mixes, budget, 102, 512)
    found = by_text(TABLE, mixes, budget, 102, 512, (), diverge, None)
    assert {one.name: one.weight for one in found.chosen} == {"a": 3.0, "b": 1.0}
    assert found.winner == best
    assert found.picks == ((4, 2) if best == "mix" else found.solution.picks)
    assert found.divergence == (0.0 if best == "mix" else pytest.approx(found.loss))
    assert [one.name for one in found.rivals] == ["mix"]
    assert before.divergence is None
