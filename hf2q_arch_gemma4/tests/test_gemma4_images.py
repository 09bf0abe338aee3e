"""How an image is made ready for the tower, against transformers' image processor."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.formats.images import resized
from hf2q_arch_gemma4.images import fitted_size, in_blocks, normalised, patches_of

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("size", "most", "expected"),
    [
        # recorded from transformers 5.17, get_aspect_ratio_preserving_size with patches of 16 pixels
        ((200, 200), 70, (384, 384)),
        ((50, 110), 70, (240, 576)),
        ((100, 20000), 70, (48, 3360)),
        ((1, 1), 280, (768, 768)),
        ((3000, 4000), 280, (672, 912)),
        ((17, 3000), 280, (48, 10656)),
        ((3000, 17), 280, (10656, 48)),
        ((1, 5000), 280, (48, 13440)),
        ((480, 640), 1120, (1344, 1824)),
        ((100, 20000), 1120, (96, 22704)),
    ],
)
def test_the_size_is_the_one_of_the_reference(size, most, expected):
    assert fitted_size(*size, 48, most) == expected


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9000), st.integers(1, 9000), st.sampled_from([12, 48]), st.sampled_from([70, 280, 1120]))
def test_sizes_are_whole_tokens_of_which_there_is_room(height, width, token, most):
    rows, columns = (side / token for side in fitted_size(height, width, token, most))
    assert rows == int(rows) > 0
    assert columns == int(columns) > 0
    assert rows * columns <= most
    assert (rows + 1) * (columns + 1) > most or min(rows, columns) == 1


def test_patches_equal_the_reference():
    """Resized, cut and in order; blocks of three by three come together."""
    with np.load(DATA / "patches.npz") as recorded:
        size = fitted_size(*recorded["pixels"].shape[:2], 12, 70)
        found, grid = patches_of(normalised(resized(recorded["pixels"], size), (0, 0, 0), (1, 1, 1)), 4, 3)
        assert grid == (15, 36)
        places = recorded["places"].reshape(*grid, 2)
        assert (places[2, 5] == (5, 2)).all()  # column, row
        assert np.array_equal(np.rint(found * 255), in_blocks(recorded["patches"].reshape(*grid, -1), 3))
        assert found.dtype == np.float32


def test_colours_are_normalised_one_by_one():
    pixels = np.array([[[0, 128, 255]]], np.uint8)
    found = normalised(pixels, (0.5, 0.4, 0.3), (0.25, 0.5, 0.75))
    np.testing.assert_allclose(found[0, 0], [-2, (128 / 255 - 0.4) / 0.5, 0.7 / 0.75], rtol=1e-6)


def test_blocks_come_one_after_another():
    cells = np.arange(36).reshape(6, 6)
    assert in_blocks(cells, 3)[:9].tolist() == [0, 1, 2, 6, 7, 8, 12, 13, 14]
    assert in_blocks(cells, 3)[9:12].tolist() == [3, 4, 5]
