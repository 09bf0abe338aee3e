"""The typed look-ups of `Plugins`: hits, misses that say what to install, aliases, clashes by every name."""

import pytest

from hf2q import known
from hf2q.discovery import names_from, normalized
from hf2q.errors import DuplicateNameError, UnknownNameError
from hf2q.plugins import Plugins
from hf2q.types import ArchEntry, Recipe


def entry(arch, *classes):
    return ArchEntry(arch=arch, hf_architectures=classes, model_types=(), hparams="a:b", catalog=arch)


def recipe(name, *aliases):
    return Recipe(name=name, ftype=1, default="F16", policy="a:b", quantizes=True, aliases=aliases)


def plugins(archs=(), recipes=()):
    return Plugins((), {"hf2q_arch_entries": archs, "hf2q_recipes": recipes})


def test_an_arch_is_found_by_its_name_and_by_its_checkpoint_class():
    one = entry("llama", "LlamaForCausalLM", "LlamaModel")
    found = plugins([(one, "a")])
    assert found.arch("llama") is one
    assert found.arch_for("LlamaModel") is one


def test_a_checkpoint_class_that_two_archs_claim_is_refused():
    found = plugins([(entry("llama", "LlamaForCausalLM"), "a"), (entry("llama2", "LlamaForCausalLM"), "b")])
    with pytest.raises(DuplicateNameError, match="'LlamaForCausalLM' is provided by a and b"):
        found.arch_for("LlamaForCausalLM")
    assert found.arch("llama"), "the archs themselves do not clash"


def test_an_arch_that_two_provide_is_refused_by_checkpoint_class_as_well():
    found = plugins([(entry("llama", "LlamaForCausalLM"), "a"), (entry("llama", "Llama2ForCausalLM"), "b")])
    with pytest.raises(DuplicateNameError, match="a and b"):
        found.arch_for("Llama2ForCausalLM")


def test_an_unknown_checkpoint_class_says_what_to_install():
    with pytest.raises(UnknownNameError) as caught:
        plugins().arch_for("Qwen3_5ForCausalLM")
    assert "arch for the checkpoint class 'Qwen3_5ForCausalLM'" in caught.value.message
    assert caught.value.hint == "pip install hf2q-arch-qwen35"


def test_a_recipe_is_found_by_name_and_alias_in_any_case():
    one = recipe("q4_k_m", "q4_k")
    found = plugins(recipes=[(one, "a")])
    assert found.recipe("Q4_K_M") is found.recipe("q4_k") is one


@pytest.mark.parametrize(
    "pair",
    [
        (recipe("q4_k_m", "q4_k"), recipe("q4_k_s", "q4_k")),
        (recipe("q4_k_m", "q4_k"), recipe("q4_k")),
    ],
)
def test_an_alias_that_two_recipes_claim_is_refused(pair):
    with pytest.raises(DuplicateNameError, match="'q4_k' is provided by a and b"):
        plugins(recipes=[(pair[0], "a"), (pair[1], "b")]).recipe("q4_k")


@pytest.mark.parametrize(
    ("look_up", "name", "told"),
    [
        ("arch", "qwen35", "pip install hf2q-arch-qwen35"),
        ("catalog", "gemma4", "pip install hf2q-arch-gemma4"),
        ("graph", "deepseek4", "pip install hf2q-arch-deepseek4"),
        ("codec", "Q4_K", "pip install hf2q-quant-kquant"),
        ("recipe", "q4_k_m", "pip install hf2q-quant-kquant"),
        ("writer", "mlx", "pip install hf2q-writer-mlx"),
        ("writer", "onnx", "`hf2q plugins` lists every writer provided"),
        ("backend", "cuda", "`hf2q plugins` lists every backend provided"),
        ("chat_format", "qwen", "`hf2q plugins` lists every chat format provided"),
        ("command", "chat", "`hf2q plugins` lists every command provided"),
    ],
)
def test_every_look_up_explains_a_miss(look_up, name, told):
    with pytest.raises(UnknownNameError) as caught:
        getattr(plugins(), look_up)(name)
    assert name in caught.value.message
    assert caught.value.hint == told


def test_the_static_table_names_the_first_party_distributions():
    for table in (known.ARCHS, known.HF_ARCHITECTURES, known.CODECS, known.RECIPES, known.WRITERS):
        assert table
        for distribution in table.values():
            assert distribution.startswith(("hf2q-arch-", "hf2q-quant-", "hf2q-writer-"))


def test_the_static_table_cannot_be_changed():
    with pytest.raises(TypeError):
        known.ARCHS["mine"] = "hf2q-arch-mine"


@pytest.mark.parametrize(("text", "names"), [(None, None), ("", frozenset()), ("a, B_c ,", frozenset({"a", "b-c"}))])
def test_lists_of_names(text, names):
    assert names_from(text) == names


def test_names_compare_as_distributions_do():
    assert normalized("HF2Q_Arch.Mine") == normalized("hf2q-arch--mine") == "hf2q-arch-mine"
