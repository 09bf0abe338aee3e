"""The trained fixtures against what llama.cpp's tools make of them: every tensor, every key, the order of both.

The goldens are described in data/PROVENANCE.md.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from hf2q.convert import convert
from hf2q.formats.gguf.reader import open_gguf
from hf2q.plugins import Plugins
from hf2q.testing.fixtures import require_fixture
from hf2q.types import ValueType

DATA = Path(__file__).parent / "data"
GOLDEN = {name: json.loads((DATA / f"{name}.golden.json").read_text()) for name in ("qwen3_5", "qwen3_5_moe")}
CASES = [(name, key) for name, golden in GOLDEN.items() for key in golden["tensors"]]


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


def digest(data):
    return hashlib.sha256(data).hexdigest()[:32]


def described(value):
    """A metadata value as the goldens give it."""
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, list) and len(value) > 64:
        return {"len": len(value), "sha256": digest(json.dumps(value, ensure_ascii=False).encode())}
    return value


def content(path):
    """Tensors, metadata and order of a file in the goldens' form."""
    with open_gguf(path) as opened:
        tensors = {
            name: [t.qtype, list(reversed(t.shape)), digest(np.array(opened.rows(name)).tobytes())]
            for name, t in opened.tensors.items()
        }
        fields = [opened.field(key) for key in opened.keys_in_order]
    kinds = {
        field.key: [field.type.name, field.element.name] if field.type is ValueType.ARRAY else [field.type.name]
        for field in fields
    }
    return tensors, [(field.key, [kinds[field.key], described(field.value)]) for field in fields]


@pytest.mark.parametrize(("name", "key"), CASES)
def test_files_equal_the_reference(plugins, tmp_path, name, key):
    source = DATA / name if (DATA / name).is_dir() else require_fixture(name)
    golden = GOLDEN[name]
    quant, via, matrix = (*key.split("|"), "", "")[:3]
    imatrix = DATA / f"{name}.imatrix" if matrix else None
    options = {"via": via or "auto", "imatrix": imatrix, "provenance": False}
    made = convert(source, quant, tmp_path / "out.gguf", plugins=plugins, **options)
    tensors, metadata = content(made.output)
    assert tensors == golden["tensors"][key]
    if key in golden["order"]:
        assert list(tensors) == golden["order"][key]
    if key in golden["kv"]:
        assert metadata == list(golden["kv"][key].items())


def test_every_mix_is_compared():
    recipes = {key.partition("|")[0] for key in GOLDEN["qwen3_5"]["tensors"]}
    assert len(recipes) == 3 + 16


@pytest.mark.parametrize("name", GOLDEN)
def test_the_default_intermediate_is_that_of_the_checkpoint(plugins, tmp_path, name):
    source = DATA / name if (DATA / name).is_dir() else require_fixture(name)
    files = [
        convert(source, "q8_0", tmp_path / f"{via}.gguf", via=via, provenance=False, plugins=plugins)
        for via in ("auto", "bf16")
    ]
    assert len({Path(made.output).read_bytes() for made in files}) == 1


def test_bytes_do_not_depend_on_threads(plugins, tmp_path):
    files = [convert(DATA / "qwen3_5", "q4_k_m", tmp_path / f"{n}.gguf", threads=n, plugins=plugins) for n in (1, 2, 7)]
    assert len({Path(made.output).read_bytes() for made in files}) == 1
