"""How an image is made ready for the tower: its size, its colours, its patches.

Source: transformers 5.17, models/gemma4/image_processing_pil_gemma4.py, `get_aspect_ratio_preserving_size`,
`convert_image_to_patches` and `Gemma4ImageProcessorPil`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hf2q.types import Float32


def fitted_size(height: int, width: int, token: int, most: int) -> tuple[int, int]:
    """The largest size of about the image's shape that is at most `most` tokens, each a square of `token` pixels.

    Smaller images grow. One that would be less than a token wide is one token wide, and loses its shape.
    """
    scale = math.sqrt(most * token**2 / (height * width))
    rows, columns = math.floor(scale * height / token), math.floor(scale * width / token)
    if rows == 0:
        rows, columns = 1, min(width // height, most)
    elif columns == 0:
        rows, columns = min(height // width, most), 1
    return rows * token, columns * token


def normalised(pixels: NDArray[np.uint8], mean: tuple[float, ...], std: tuple[float, ...]) -> Float32:
    """Pixels (H, W, 3) from 0 to 255 -> float32 (H, W, 3): from 0 to 1, less the mean, by the deviation of a colour."""
    shares = (np.arange(256) * (1 / 255)).astype(np.float32)
    centre: Float32 = np.array(mean, np.float32)
    spread: Float32 = np.array(std, np.float32)
    table: Float32 = (shares[:, None] - centre) / spread  # (256, 3)
    return table[pixels, np.arange(3)]


def patches_of(image: Float32, patch: int, pooling: int) -> tuple[Float32, tuple[int, int]]:
    """An image (H, W, 3) -> its patches (P, patch · patch · 3), block by block, and their grid (rows, columns).

    The numbers of a patch go row by row, pixel by pixel.
    """
    grid = image.shape[0] // patch, image.shape[1] // patch
    cut = image.reshape(grid[0], patch, grid[1], patch, 3).transpose(0, 2, 1, 3, 4)  # (rows, columns, patch, patch, 3)
    return in_blocks(cut.reshape(*grid, -1), pooling), grid


def in_blocks(cells: NDArray[Any], side: int) -> NDArray[Any]:
    """Cells of a grid (rows, columns, ...) -> (P, ...), those of each block of side × side together."""
    rows, columns, *rest = cells.shape
    split = cells.reshape(rows // side, side, columns // side, side, *rest)
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows * columns, *rest)
