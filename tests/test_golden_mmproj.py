"""Projectors of trained fixtures against what llama.cpp's converter makes of them: every tensor, every key, the order.

The towers of Qwen 3.5 are converted by the plugin of Qwen 3-VL; the two meet here. The goldens are described in
data/PROVENANCE.md.
"""

import json
from pathlib import Path

import pytest

from hf2q.convert import convert
from hf2q.errors import UnknownNameError
from hf2q.plugins import Plugins
from hf2q.testing.fixtures import require_fixture
from test_golden_qwen3_5 import DATA, content

NAMES = ("qwen3_5", "qwen3_vl")
GOLDEN = {name: json.loads((DATA / f"mmproj-{name}.golden.json").read_text()) for name in NAMES}


def fixture(name):
    return DATA / name if (DATA / name).is_dir() else require_fixture(name)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_projectors_equal_the_reference(tmp_path, name, kind):
    golden = GOLDEN[name]
    made = convert(
        fixture(name), kind, tmp_path / "x.gguf", mmproj=True, provenance=False, sidecars=False, receipt=False
    )
    tensors, metadata = content(made.projector.output)
    assert tensors == golden["tensors"][kind]
    assert list(tensors) == golden["order"][kind]
    assert metadata == list(golden["kv"][kind].items())


def test_the_default_name_is_the_converters(tmp_path):
    made = convert(DATA / "qwen3_5", "q4_k_m", tmp_path, mmproj=True)
    assert Path(made.projector.output).name == "mmproj-Qwen3_5-F16.gguf"
    assert sorted(path.name for path in tmp_path.glob("*.gguf")) == sorted(
        [Path(made.output).name, "mmproj-Qwen3_5-F16.gguf"]
    )


def test_without_the_projectors_plugin_a_miss_says_what_to_install(tmp_path):
    plugins = Plugins.load(disable=["qwen3vl"])
    with pytest.raises(UnknownNameError) as raised:
        convert(DATA / "qwen3_5", "f16", tmp_path / "x.gguf", mmproj=True, plugins=plugins)
    assert "hf2q-arch-qwen3vl" in raised.value.hint
