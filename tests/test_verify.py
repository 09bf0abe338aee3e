"""`hf2q verify` over distributions: quantized files of a real family, with importance, with a projector, made twice."""

import json
import random
import shutil
from pathlib import Path

import pytest

from hf2q.cli import main
from hf2q.convert import convert
from hf2q.convert.verify import verify
from hf2q.formats.ggml_types import GGML_TYPES
from hf2q.formats.gguf import open_gguf
from hf2q.plugins import Plugins

DATA = Path(__file__).parent / "data"
SOURCE, MATRIX = DATA / "qwen3_5", DATA / "qwen3_5.imatrix"


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load()


@pytest.fixture(scope="module")
def made(tmp_path_factory, plugins):
    """A quantized file with its projector and its receipt."""
    out = tmp_path_factory.mktemp("made") / "m.gguf"
    return Path(convert(SOURCE, "q4_k_m", out, imatrix=MATRIX, mmproj=True, plugins=plugins).output)


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_model_and_projector_are_equal(made, plugins):
    found = verify(made, SOURCE, imatrix=MATRIX, plugins=plugins)
    assert found.equal
    assert {"Q4_K", "Q6_K", "F32"} <= {tensor.qtype for tensor in found.tensors}
    tower = verify(made.with_name("mmproj-m.gguf"), SOURCE, plugins=plugins)
    assert tower.equal
    assert tower.receipt == f"{made}.receipt.json"


def test_the_projector_goes_by_its_keys_too(made, plugins, tmp_path):
    alone = Path(shutil.copy(made.with_name("mmproj-m.gguf"), tmp_path))
    assert verify(alone, SOURCE, plugins=plugins).equal
    with open_gguf(alone) as file:
        tensor = list(file.tensors.values())[3]
    flip(alone, tensor.offset + 9)
    [wrong] = verify(alone, SOURCE, plugins=plugins).wrong
    assert (wrong.name, wrong.difference.offset) == (tensor.name, 9)


def test_what_decides_nothing_about_a_projector_is_refused(made, capsys):
    words = ["verify", str(made.with_name("mmproj-m.gguf")), "--source", str(SOURCE)]
    assert main([*words, "--imatrix", str(MATRIX), "--no-mtp"]) == 3
    assert "--no-mtp cannot be followed" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(4))
def test_a_byte_of_a_block_is_placed(made, plugins, tmp_path, seed):
    path = Path(shutil.copy(made, tmp_path))
    with open_gguf(path) as file:
        quantized = [tensor for tensor in file.tensors.values() if tensor.qtype.endswith("_K")]
    tensor = random.Random(seed).choice(quantized)
    offset = random.Random(seed).randrange(tensor.nbytes)
    flip(path, tensor.offset + offset)
    [wrong] = verify(path, SOURCE, imatrix=MATRIX, plugins=plugins).wrong
    kind, where = GGML_TYPES[tensor.qtype], wrong.difference
    assert (wrong.name, where.offset, where.count, where.row) == (tensor.name, offset, 1, offset // tensor.row_bytes)
    assert where.column == offset % tensor.row_bytes // kind.type_size * kind.block_size


def test_another_mix_of_the_same_source_differs(plugins, tmp_path):
    made = convert(SOURCE, "q4_k_m", tmp_path / "m.gguf", provenance=False, receipt=False, plugins=plugins).output
    found = verify(made, SOURCE, plugins=plugins)
    assert (found.equal, found.recorded, found.recipe) == (True, False, "q4_k_m")
    assert [key.key for key in verify(made, SOURCE, recipe="q5_k_m", plugins=plugins).keys] == ["general.file_type"]


def test_a_requantized_file(made, plugins, tmp_path):
    again = convert(made, "q4_0", tmp_path / "again.gguf", allow_requantize=True, plugins=plugins)
    assert verify(again.output, made, plugins=plugins).equal
    told = json.loads(Path(again.receipt).read_text())
    assert (told["source"]["kind"], told["source"]["name"]) == ("gguf", "m.gguf")
