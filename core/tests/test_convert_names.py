"""What is said of names that ``--quant`` cannot take."""

import pytest

from hf2q.convert.names import NEEDS, RETIRED, find_recipe
from hf2q.errors import UnknownNameError
from hf2q.plugins import Plugins, discover


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


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_known_mixes_say_what_they_need(core, name):
    with pytest.raises(UnknownNameError, match=r"is known, but no plugin provides it: it needs") as caught:
        find_recipe(core, name)
    assert NEEDS[name] in caught.value.message
    assert "here: bf16, f16, f32" in caught.value.message


@pytest.mark.parametrize("name", ["tq1_0", "TQ2_0", "dwq", "dwq-4-6", "apex", "apex-balanced", "apex-i-nano"])
def test_names_that_are_refused_say_why(core, name):
    with pytest.raises(UnknownNameError, match="cannot be converted to: "):
        find_recipe(core, name)


@pytest.mark.parametrize("name", sorted(RETIRED))
def test_old_spellings_say_what_is_meant(core, name):
    with pytest.raises(UnknownNameError) as caught:
        find_recipe(core, name)
    assert caught.value.hint == f"--quant {RETIRED[name]}"


def test_near_misses_are_named_once(core):
    with pytest.raises(UnknownNameError, match=r"no quant 'q4km'; did you mean q4_k_m") as caught:
        find_recipe(core, "q4km")
    assert caught.value.message.count("q4_k_m") == 1
    with pytest.raises(UnknownNameError, match=r"no quant 'zebra' \(here"):
        find_recipe(core, "zebra")
