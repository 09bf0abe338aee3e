"""What is said of names that ``--quant`` cannot take."""

import pytest

from hf2q.convert.names import find_recipe
from hf2q.errors import UnknownNameError
from hf2q.plugins import Plugins, discover
from hf2q.policy.refused import NUMBERS, REFUSED, RETIRED


@pytest.fixture(scope="module")
def core():
    return Plugins.load(entry_points=[point for point in discover() if point.name == "builtin"])


@pytest.mark.parametrize("name", ["f32", "F16", "bf16"])
def test_names_that_core_has(core, name):
    assert find_recipe(core, name).name == name.lower()


def test_what_a_known_plugin_would_bring(core):
    with pytest.raises(UnknownNameError) as caught:
        find_recipe(core, "q4_k_m")
    assert "hf2q-quant-kquant" in caught.value.hint


@pytest.mark.parametrize("name", [*sorted(REFUSED), "TQ2_0", "dwq-4-6", "apex-i-nano"])
def test_names_that_are_refused_say_why(core, name):
    with pytest.raises(UnknownNameError, match="cannot be converted to: "):
        find_recipe(core, name)


@pytest.mark.parametrize("name", sorted(RETIRED))
def test_old_spellings_say_what_is_meant(core, name):
    with pytest.raises(UnknownNameError) as caught:
        find_recipe(core, name)
    assert caught.value.hint == f"--quant {RETIRED[name]}"


@pytest.mark.parametrize("number", [0, 15, 19, 38])
def test_numbers_are_refused_with_their_name(core, number):
    with pytest.raises(UnknownNameError) as caught:
        find_recipe(core, str(number))
    refused = NUMBERS[number] in REFUSED
    assert (f"--quant {NUMBERS[number]}" == caught.value.hint) is not refused


def test_near_misses_are_named_once(core):
    with pytest.raises(UnknownNameError, match=r"no quant 'q4km'; did you mean q4_k_m") as caught:
        find_recipe(core, "q4km")
    assert caught.value.message.count("q4_k_m") == 1
    with pytest.raises(UnknownNameError, match=r"no quant 'zebra' \(here"):
        find_recipe(core, "zebra")


def test_a_name_that_is_refused_is_not_suggested(core):
    with pytest.raises(UnknownNameError) as caught:
        find_recipe(core, "q2_0")
    assert "tq2_0" not in caught.value.message
