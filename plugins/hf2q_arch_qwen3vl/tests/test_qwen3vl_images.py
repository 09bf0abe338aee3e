"""How an image is made ready for the tower, against transformers' image processor."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.errors import RequestError
from hf2q.formats.images import resized
from hf2q_arch_qwen3vl.images import in_blocks, interpolation, normalised, patches_of, smart_size

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("size", "bounds", "expected"),
    [
        # recorded from transformers 5.17, smart_resize with factor 32
        ((64, 64), (4096, 1 << 20), (64, 64)),
        ((50, 110), (4096, 1 << 20), (64, 96)),
        ((48, 80), (1, 1 << 20), (64, 64)),
        ((1, 1), (65536, 1 << 24), (256, 256)),
        ((100, 20000), (65536, 1 << 20), (64, 14464)),
        ((3000, 4000), (65536, 1 << 20), (864, 1152)),
        ((17, 3000), (65536, 1 << 24), (32, 3008)),
    ],
)
def test_the_size_is_the_one_of_the_reference(size, bounds, expected):
    assert smart_size(*size, 32, *bounds) == expected


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 5000), st.integers(1, 5000), st.sampled_from([8, 28, 32]), st.integers(1, 64), st.integers(0, 500)
)
def test_sizes_are_within_bounds(height, width, factor, least, more):
    low, high = least * factor**2, (4 * least + more) * factor**2
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(RequestError, match="too narrow"):
            smart_size(height, width, factor, low, high)
        return
    found = smart_size(height, width, factor, low, high)
    assert all(side % factor == 0 and side > 0 for side in found)
    # a strip may end one factor wide, whatever the bound
    assert found[0] * found[1] <= high or min(found) == factor


def test_resizing_equals_the_reference():
    with np.load(DATA / "resized.npz") as recorded:
        size = smart_size(*recorded["pixels"].shape[:2], 32, 4096, 1 << 20)
        assert (resized(recorded["pixels"], size) == recorded["resized"]).all()


def test_colours_are_normalised_one_by_one():
    pixels = np.array([[[0, 128, 255]]], np.uint8)
    found = normalised(pixels, (0.5, 0.4, 0.3), (0.25, 0.5, 0.75))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0, 0], [-2, (128 / 255 - 0.4) / 0.5, 0.7 / 0.75], rtol=1e-6)


def test_patches_come_block_by_block():
    height, width, patch, merge = 12, 16, 2, 2
    image = np.arange(height * width * 3, dtype=np.float32).reshape(height, width, 3)
    patches, grid = patches_of(image, patch, merge)
    assert grid == (6, 8)
    expected = [
        image[y * patch : (y + 1) * patch, x * patch : (x + 1) * patch].transpose(2, 0, 1).reshape(-1)
        for top in range(0, 6, merge)
        for left in range(0, 8, merge)
        for y in range(top, top + merge)
        for x in range(left, left + merge)
    ]
    assert (patches == np.stack(expected)).all()


@pytest.mark.parametrize(("grid", "side"), [((6, 6), 6), ((4, 6), 6), ((8, 2), 5), ((2, 2), 1), ((6, 4), 48)])
def test_positions_are_interpolated_from_corner_to_corner(grid, side):
    index, share = interpolation(grid, side, 2)
    assert (index.dtype, share.dtype) == (np.int32, np.float32)
    assert index.min() >= 0
    assert index.max() < side * side
    np.testing.assert_allclose(share.sum(0), 1, rtol=1e-6)
    table = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1).reshape(-1, 2)
    found = (table[index] * share[..., None]).sum(0)
    rows, columns = (np.linspace(0, side - 1, count) for count in grid)
    wanted = np.stack(np.meshgrid(rows, columns, indexing="ij"), -1)
    np.testing.assert_allclose(found, in_blocks(wanted, 2), atol=1e-5)
    if grid == (side, side):
        assert (share.max(0) == 1).all()
