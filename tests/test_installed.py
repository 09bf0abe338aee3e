"""The contract suites over the plugins that are installed here, as `hf2q plugins check` runs them.

Those of this repository's families run in their own tests: here it is checked that they are found.
"""

from pathlib import Path

import pytest

from hf2q import known
from hf2q.plugins import Plugins
from hf2q.testing.checking import suites
from hf2q.testing.contract import Contract
from hf2q.testing.family import FamilyContract

ROOT = Path(__file__).parents[1]
OWN_TESTS = {
    path.parts[-3].replace("_", "-")
    for pattern in ("hf2q_*/tests/test_*_contract.py", "plugins/*/tests/test_*_contract.py")
    for path in ROOT.glob(pattern)
}
"""Distributions whose tests run their suites."""
FIRST_PARTY = {*known.ARCHS.values(), *known.CODECS.values()}
LOADED = [info for info in Plugins.load().infos if info.status != "disabled"]


@pytest.mark.parametrize("info", LOADED, ids=lambda info: info.name)
def test_it_loads(info):
    assert info.status == "loaded", info.reason


def test_no_names_clash():
    assert [clash.message for clash in Plugins.load().clashes] == []


def test_the_table_of_known_names_is_complete():
    """What a first-party plugin provides is in `hf2q.known`, so that a miss says what to install."""
    entries = {info.distribution: info for info in LOADED if info.distribution in FIRST_PARTY}
    assert entries
    for distribution, info in entries.items():
        for kind, table in (
            ("arch", known.ARCHS),
            ("projector", known.PROJECTORS),
            ("codec", known.CODECS),
            ("recipe", known.RECIPES),
        ):
            unknown = [name for name in info.provides.get(kind, ()) if table.get(name) != distribution]
            assert not unknown, f"hf2q.known lacks {kind} {unknown} of {distribution}"
    for entry in Plugins.load().archs:
        if entry.arch in known.ARCHS:
            unknown = [name for name in entry.hf_architectures if name not in known.HF_ARCHITECTURES]
            assert not unknown, f"hf2q.known lacks the checkpoint classes {unknown}"


@pytest.mark.parametrize("distribution", sorted(OWN_TESTS))
def test_suites_are_found(distribution):
    assert suites(distribution)


def collected():
    """A test class for each suite, named after the plugin; what is about the plugin as a whole is in one of them."""
    for info in LOADED:
        name = "builtin" if info.name == "builtin" else info.distribution
        if info.status == "loaded" and name not in OWN_TESTS:
            once: dict[str, None] = {}
            for suite, cls in suites(name).items():
                # a family without a tiny configuration is checked by its own tests, where its data is
                if not (issubclass(cls, FamilyContract) and cls.config is None):
                    yield f"{suite}_{info.name}", type(cls.__name__, (cls,), once)
                    once = dict.fromkeys(check for check in vars(Contract) if check.startswith("test_"))


globals().update(collected())
