"""Whole files of tiny checkpoints against what llama.cpp's converter and quantizer make of them."""

import hashlib
import json
from pathlib import Path

import pytest
from qwen3vl_checkpoints import VARIANTS, write

from hf2q.convert import convert
from hf2q.plugins import Plugins

GOLDEN = json.loads((Path(__file__).parent / "data" / "variants.golden.json").read_text())
POOLED = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {
        "word_embedding_dimension": 48,
        "pooling_mode_lasttoken": True,
        "pooling_mode_mean_tokens": False,
    },
}


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


@pytest.mark.parametrize("name", GOLDEN)
def test_files_equal_the_reference(plugins, tmp_path, name):
    arch, config = VARIANTS["dense" if name == "embedder" else name]
    source = write(tmp_path / name, arch, config, extra=POOLED if name == "embedder" else None)
    (tmp_path / "out").mkdir()
    found = {}
    for key in GOLDEN[name]:
        mix = key.removeprefix("mmproj-")
        output = tmp_path / "out" / ("x.gguf" if mix == key else "mmproj-x.gguf")
        convert(
            source,
            mix,
            output,
            mmproj=mix != key,
            force=True,
            provenance=False,
            sidecars=False,
            receipt=False,
            plugins=plugins,
        )
        found[key] = hashlib.sha256(output.read_bytes()).hexdigest()
    assert found == GOLDEN[name]
