"""`Registry`: read-only, refuses clashes, explains misses."""

import pytest

from hf2q.errors import DuplicateNameError, UnknownNameError
from hf2q.registry import Registry

ONE, TWO = object(), object()


def registry(**more):
    return Registry("codec", [("Q4_K", ONE, "kquant"), ("F16", TWO, "hf2q")], **more)


def test_looks_up_and_lists_in_order():
    found = registry()
    assert found["Q4_K"] is ONE
    assert found.get("F16") is TWO
    assert found.get("Q2_K") is None
    assert found.names == ("F16", "Q4_K")
    assert list(found) == [TWO, ONE]
    assert len(found) == 2
    assert "F16" in found
    assert "Q2_K" not in found
    assert found.providers["Q4_K"] == "kquant"


def test_is_read_only():
    found = registry()
    with pytest.raises(TypeError):
        found["F16"] = ONE
    with pytest.raises(TypeError):
        found.providers["F16"] = "mine"


def test_a_looked_up_miss_adds_nothing():
    found = registry()
    with pytest.raises(UnknownNameError):
        found["Q2_K"]
    assert found.names == ("F16", "Q4_K")


def test_a_name_that_two_provide_belongs_to_neither():
    found = Registry("codec", [("Q4_K", ONE, "zeta"), ("Q4_K", TWO, "alpha"), ("F16", TWO, "hf2q")])
    assert "Q4_K" not in found
    assert found.names == ("F16",)
    with pytest.raises(DuplicateNameError, match="provided by alpha and zeta; neither is used"):
        found["Q4_K"]
    with pytest.raises(DuplicateNameError):
        found.get("Q4_K")


def test_two_plugins_of_one_distribution_clash_as_well():
    with pytest.raises(DuplicateNameError, match="provided by two plugins of alpha; neither"):
        Registry("codec", [("Q4_K", ONE, "alpha"), ("Q4_K", TWO, "alpha")])["Q4_K"]


def test_a_clash_of_three_names_all_of_them():
    found = Registry("codec", [("Q4_K", object(), name) for name in ("c", "a", "b")])
    assert found.clashes["Q4_K"] == ("a", "b", "c")


def test_a_third_provider_does_not_revive_a_clashing_name():
    found = Registry("codec", [("Q4_K", ONE, "a"), ("Q4_K", TWO, "b"), ("Q4_K", ONE, "a")])
    assert "Q4_K" not in found


def test_the_same_object_twice_is_one():
    found = Registry("codec", [("Q4_K", ONE, "a"), ("Q4_K", ONE, "a")])
    assert found["Q4_K"] is ONE
    assert not found.clashes


def test_a_miss_names_what_is_known_and_the_near_one():
    with pytest.raises(UnknownNameError) as caught:
        registry()["Q4_k"]
    assert "no codec 'Q4_k'; known: F16, Q4_K; did you mean 'Q4_K'?" in caught.value.message


def test_a_miss_says_what_to_install():
    with pytest.raises(UnknownNameError) as caught:
        registry(known={"IQ4_NL": "hf2q-quant-kquant"})["IQ4_NL"]
    assert caught.value.hint == "pip install hf2q-quant-kquant"


def test_a_miss_names_failed_plugins_and_does_not_ask_to_install_them_again():
    with pytest.raises(UnknownNameError) as caught:
        registry(known={"IQ4_NL": "hf2q-quant-kquant"}, failed={"kquant": "hf2q-quant-kquant"})["IQ4_NL"]
    assert "plugins that failed to load: kquant" in caught.value.message
    assert caught.value.hint == "hf2q-quant-kquant is installed but did not load; `hf2q plugins` says why"


def test_a_miss_in_an_empty_registry():
    with pytest.raises(UnknownNameError, match="none is installed"):
        Registry("graph", [])["qwen35"]


def test_long_lists_are_cut():
    many = Registry("codec", [(f"Q{n:03}", object(), "d") for n in range(30)])
    with pytest.raises(UnknownNameError, match="Q009 and 20 more"):
        many["zzz"]
