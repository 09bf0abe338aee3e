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
PLAIN = {"provenance": False, "sidecars": False, "receipt": False, "force": True}


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


@pytest.fixture
def listed(dense, small, moe, tower):
    """The list in variants.py."""
    spec = importlib.util.spec_from_file_location("gemma4_variants", HERE / "variants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.variants(dense, small, moe, tower)


@pytest.mark.parametrize("name", GOLDEN)
def test_files_are_those_of_llama_cpp(write, listed, plugins, tmp_path, name):
    config, options = listed[name]
    folder = write(tmp_path / name, config, **options)
    mmproj = name.startswith("mmproj")
    output = tmp_path / ("mmproj-out.gguf" if mmproj else "out.gguf")
    done = []
    for key, expected in GOLDEN[name].items():
        quant, _, via = key.partition("|")
        if quant not in plugins.recipes:
            continue
        made = convert(folder, quant, output, via=via or "auto", mmproj=mmproj, plugins=plugins, **PLAIN)
        assert hashlib.sha256(Path(made.output).read_bytes()).hexdigest() == expected, key
        done.append(key)
    assert {"f16", "bf16"} <= set(done)
    if len(done) < len(GOLDEN[name]):
        pytest.skip(f"only {', '.join(done)}: hf2q-quant-kquant is not installed")


def test_the_list_is_what_was_recorded(listed):
    assert list(listed) == list(GOLDEN)


def test_a_projector_is_written_beside_the_model(write, listed, plugins, tmp_path):
    config, options = listed["mmproj_plain"]
    folder = write(tmp_path / "mmproj_plain", config, **options)
    made = convert(folder, "f16", tmp_path / "m.gguf", mmproj=True, plugins=plugins, **PLAIN)
    assert Path(made.output).is_file()
    found = (tmp_path / "mmproj-m.gguf").read_bytes()
    assert hashlib.sha256(found).hexdigest() == GOLDEN["mmproj_plain"]["f16"]
