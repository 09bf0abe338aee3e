"""Blocks that stay as they are on an NVIDIA GPU: the numbers are those that the codecs decode. What needs a GPU is
skipped without one; that the table fits the codecs is checked everywhere.
"""

import numpy as np
import pytest

from hf2q.plugins import Plugins

pytest.importorskip("mlx.core")

import mlx.core as mx

from hf2q.backends.mlx.cuda import FEW, BlockMatrix, holds
from hf2q.backends.mlx.cuda_types import TYPES

PLUGINS = Plugins.load()
pytestmark = pytest.mark.mlx


@pytest.mark.parametrize("qtype", TYPES)
def test_sizes_are_those_of_the_codec(qtype):
    codec = PLUGINS.codec(qtype)
    assert (TYPES[qtype].weights, TYPES[qtype].bytes) == (codec.block_size, codec.type_size)
    assert TYPES[qtype].weights % 8 == 0
    assert holds(qtype, 512)
    assert not holds(qtype, 24)


def test_other_types_are_not_held():
    assert not holds("IQ2_XS", 512)
    assert not holds("F32", 512)


@pytest.fixture(scope="module")
def gpu():
    if not mx.cuda.is_available():
        pytest.skip("no NVIDIA GPU, or MLX was built without CUDA")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("qtype", TYPES)
class TestOnTheGPU:
    @pytest.fixture
    def blocks(self, qtype):
        rng = np.random.default_rng(3)
        values = rng.standard_normal((192, 512), np.float32) * rng.uniform(0.2, 3, (192, 1)).astype(np.float32)
        codec = PLUGINS.codec(qtype)
        blocks = codec.encode(values)
        return np.ascontiguousarray(blocks), codec.decode(blocks)

    def test_rows_are_exact(self, qtype, blocks):
        matrix = BlockMatrix(mx.array(blocks[0]), qtype, (192, 512))
        ids = np.array([[3, 191, 0], [7, 7, 100]])
        np.testing.assert_array_equal(np.array(matrix.rows(mx.array(ids))), blocks[1][ids])

    @pytest.mark.parametrize("count", [1, 2, 5, FEW, FEW + 1])
    def test_products(self, qtype, blocks, count):
        matrix = BlockMatrix(mx.array(blocks[0]), qtype, (192, 512))
        x = np.random.default_rng(4).standard_normal((count, 512), np.float32)
        wanted = x.astype(np.float64) @ blocks[1].astype(np.float64).T
        # large products round their factors to TF32
        allowed = (1e-6 if count <= FEW else 1e-3) * np.abs(wanted).max()
        np.testing.assert_allclose(np.array(matrix.times(mx.array(x))), wanted, rtol=0, atol=allowed)

    def test_products_with_experts(self, qtype, blocks):
        matrix = BlockMatrix(mx.array(blocks[0]), qtype, (4, 48, 512))
        x = np.random.default_rng(5).standard_normal((2, 3, 1, 512), np.float32)
        experts = np.array([[0, 3, 1], [2, 2, 0]])
        chosen = blocks[1].reshape(4, 48, 512)[experts].astype(np.float64)
        wanted = np.einsum("abkc,aboc->abko", x.astype(np.float64), chosen)
        found = np.array(matrix.gather_times(mx.array(x), mx.array(experts)))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())
