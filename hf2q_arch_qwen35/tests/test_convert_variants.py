"""Whole files, equal to the last byte to what llama.cpp makes of the same checkpoints; see data/PROVENANCE.md."""

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest

from hf2q.convert import convert
from hf2q.plugins import Plugins

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "data" / "variants.golden.json").read_text())


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


@pytest.fixture
def variant(write, dense, moe, tmp_path):
    """`variant(name)` writes one of the list in variants.py: (folder, whether MTP is kept)."""
    spec = importlib.util.spec_from_file_location("qwen35_variants", HERE / "variants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make(name):
        config, options, mtp = module.variants(dense, moe)[name]
        return write(tmp_path / name, config, **options), mtp

    return make


@pytest.mark.parametrize("name", GOLDEN)
def test_files_are_those_of_llama_cpp(variant, plugins, tmp_path, name):
    folder, mtp = variant(name)
    done = []
    for key, expected in GOLDEN[name].items():
        quant, _, via = key.partition("|")
        if quant not in plugins.recipes:
            continue
        options = {"via": via or "auto", "mtp": mtp, "force": True, "provenance": False, "sidecars": False}
        made = convert(folder, quant, tmp_path / "out.gguf", plugins=plugins, **options)
        assert hashlib.sha256(Path(made.output).read_bytes()).hexdigest() == expected, key
        done.append(key)
    assert {"f16", "bf16"} <= set(done)
    if len(done) < len(GOLDEN[name]):
        pytest.skip(f"only {', '.join(done)}: hf2q-quant-kquant is not installed")


def test_the_list_is_what_was_recorded(dense, moe):
    spec = importlib.util.spec_from_file_location("qwen35_variants", HERE / "variants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert list(module.variants(dense, moe)) == list(GOLDEN)
