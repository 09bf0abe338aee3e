"""Blocks that stay as they are on an NVIDIA GPU: the numbers are those that the codecs decode. What needs a GPU is
skipped without one; that the table fits the codecs is checked everywhere.
"""

import numpy as np
import pytest

from hf2q.plugins import Plugins

pytest.importorskip("mlx.core")

import mlx.core as mx

from hf2q.backends.mlx import cuda_delta
from hf2q.backends.mlx.cuda import AT_ONCE, FEW, BlockMatrix, holds, times_all
from hf2q.backends.mlx.cuda_types import TYPES
from hf2q.backends.reference import ReferenceOps

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


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("qtype", ["Q4_K", "Q8_0"])
@pytest.mark.parametrize("count", [1, AT_ONCE, AT_ONCE + 1, FEW + 1])
def test_products_added_and_joined_are_the_plain_ones(qtype, count):
    blocks = PLUGINS.codec(qtype).encode(np.random.default_rng(3).standard_normal((192, 512), np.float32))

    def matrix(first, last, times=1):
        rows = np.concatenate([blocks[first:last]] * times)
        return BlockMatrix(mx.array(rows), qtype, (len(rows), 512))

    # more than are joined, odd sizes among them; with the large ones each warp computes two outputs
    small, large = (
        [matrix(0, 64), matrix(64, 65), matrix(65, 192)],
        [matrix(0, 192, 6), matrix(3, 8), matrix(0, 96, 12)],
    )
    x = mx.array(np.random.default_rng(6).standard_normal((1, count, 512), np.float32))
    for matrices in (small, large, small + large):
        for found, alone in zip(times_all(x, matrices), matrices, strict=True):
            np.testing.assert_array_equal(np.array(found), np.array(alone.times(x)))
    before = np.random.default_rng(7).standard_normal((1, count, 127), np.float32)
    wanted = before + np.array(small[2].times(x))
    np.testing.assert_array_equal(np.array(small[2].times_plus(x, mx.array(before))), wanted)


def test_only_matrices_of_one_type_and_width_join():
    def matrix(qtype, rows, columns):
        kind = TYPES[qtype]
        bytes_ = columns // kind.weights * kind.bytes
        return BlockMatrix(mx.zeros((rows, bytes_), mx.uint8), qtype, (rows, columns))

    assert matrix("Q4_K", 3, 512).joins(matrix("Q4_K", 5, 512))
    assert not matrix("Q4_K", 3, 512).joins(matrix("Q4_K", 3, 256))
    assert not matrix("Q4_K", 3, 512).joins(matrix("Q6_K", 3, 512))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("groups", "heads", "d_k", "d_v"), [(2, 2, 128, 128), (2, 6, 64, 32), (1, 3, 32, 128)])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (1, 2), (3, 1), (2, 5)])
def test_a_delta_net_of_few_tokens_is_the_reference(groups, heads, d_k, d_v, batch, tokens):
    assert cuda_delta.fits(d_k, d_v, 4)
    rng = np.random.default_rng(9)
    channels = 2 * groups * d_k + heads * d_v

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    conv, a, dt, norm = normal(channels, 4), -rng.exponential(1, heads).astype(np.float32), normal(heads), normal(d_v)
    states = [(normal(3, channels), normal(heads, d_k, d_v)) for _ in range(batch)]
    mine = [(mx.array(known), mx.array(state)) for known, state in states]
    ref = ReferenceOps(threads=1)
    for _ in range(2):  # the second time on the states of the first
        x, gate = normal(batch, tokens, channels), normal(batch, tokens, heads * d_v)
        alpha, beta = normal(batch, tokens, heads), normal(batch, tokens, heads)
        out, states = ref.delta_net(x, conv, a, dt, alpha, beta, states, 1e-6)
        wanted = ref.gated_rms_norm(out, norm, 1e-5, gate.reshape(out.shape)).reshape(gate.shape)
        arrays = [mx.array(part) for part in (x, gate, alpha, beta, conv, a, dt, norm)]
        found, mine = cuda_delta.between(*arrays, mine, 1e-6, 1e-5)
        np.testing.assert_allclose(np.array(found), wanted, rtol=1e-4, atol=1e-4)
        for row, other in zip(mine, states, strict=True):
            for part, plain in zip(row, other, strict=True):
                np.testing.assert_allclose(np.array(part), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("size", [1, 2, 33, 64])
def test_unit_triangles_are_inverted(size):
    """Also where entries are all as large as they get, which makes entries of the inverse large."""
    rng = np.random.default_rng(size)
    triangles = np.tril(rng.standard_normal((2, 3, size, size)), -1).astype(np.float32) / 4
    triangles[0, 0] = np.tril(np.ones((size, size)), -1)
    assert cuda_delta.inverts(size)
    found = np.array(cuda_delta.unit_lower_inverse(mx.array(triangles)))
    wanted = np.linalg.inv(triangles.astype(np.float64) + np.eye(size))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    assert not cuda_delta.inverts(cuda_delta.CHUNK + 1)
