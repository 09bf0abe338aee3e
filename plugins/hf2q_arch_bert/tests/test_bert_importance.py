"""Importance matrices of encoders: every weight of a block is counted, whole chunks at a time."""

import pytest

from hf2q.convert import convert
from hf2q.formats.gguf import open_gguf
from hf2q.quality.imatrix.compute import compute
from hf2q.quality.text import Corpus


@pytest.mark.parametrize("name", ["masked", "nomic"])
def test_every_product_of_a_block_is_counted(variants, tmp_path, name):
    source = variants.VARIANTS[name](tmp_path / name)
    path = convert(source, "f32", tmp_path / "model.gguf", sidecars=False, receipt=False).output
    text = Corpus(name="text", text="the king and the thing in the sea " * 20, sha256="0" * 64)
    found = compute(path, text, n_ctx=16, most=2, backend="reference")
    with open_gguf(path) as file:
        matrices = {one for one, tensor in file.tensors.items() if one.startswith("blk.") and len(tensor.shape) == 2}
        assert set(found.entries) == matrices
        for one, entry in found.entries.items():
            assert entry.counts.tolist() == [32]
            assert entry.sums.shape == (1, file.tensors[one].shape[1])
