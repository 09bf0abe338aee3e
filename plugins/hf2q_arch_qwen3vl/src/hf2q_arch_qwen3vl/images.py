"""How an image is made ready for the tower: its size, its colours, its patches.

Source: transformers 5.17, models/qwen2_vl/image_processing_pil_qwen2_vl.py, `smart_resize` and
`Qwen2VLImageProcessorPil`; vision_utils.py, `get_vision_interpolation_indices_and_weights`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hf2q.errors import RequestError

if TYPE_CHECKING:
    from hf2q.types import Float32

MAX_RATIO = 200
"""Of the longer side to the shorter one."""


def smart_size(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """The size nearest to the image's own whose sides are multiples of `factor` and whose area is within the bounds.

    Errors: RequestError for an image that is more than `MAX_RATIO` times as long as wide.
    """
    if max(height, width) > MAX_RATIO * min(height, width):
        raise RequestError(
            f"an image of {width} × {height} pixels is too narrow: its sides may differ by a factor of {MAX_RATIO}",
            param="image",
        )
    # round() takes halves to the even side, as Python does in the source
    rounded = round(height / factor) * factor, round(width / factor) * factor
    if rounded[0] * rounded[1] > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        return max(factor, math.floor(height / shrink / factor) * factor), max(
            factor, math.floor(width / shrink / factor) * factor
        )
    if rounded[0] * rounded[1] < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        return math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return rounded


def normalised(pixels: NDArray[np.uint8], mean: tuple[float, ...], std: tuple[float, ...]) -> Float32:
    """Pixels (H, W, 3) from 0 to 255 -> float32 (H, W, 3): from 0 to 1, less the mean, by the deviation of a colour."""
    shares = (np.arange(256) * (1 / 255)).astype(np.float32)
    centre: Float32 = np.array(mean, np.float32)
    spread: Float32 = np.array(std, np.float32)
    table: Float32 = (shares[:, None] - centre) / spread  # (256, 3)
    return table[pixels, np.arange(3)]


def patches_of(image: Float32, patch: int, merge: int) -> tuple[Float32, tuple[int, int]]:
    """An image (H, W, 3) -> its patches (P, 3 · patch · patch), block by block, and their grid (rows, columns).

    The numbers of a patch go colour by colour, row by row.
    """
    grid = image.shape[0] // patch, image.shape[1] // patch
    cut = image.reshape(grid[0], patch, grid[1], patch, 3).transpose(0, 2, 4, 1, 3)  # (rows, columns, 3, patch, patch)
    return in_blocks(cut.reshape(*grid, -1), merge), grid


def in_blocks(cells: NDArray[Any], merge: int) -> NDArray[Any]:
    """Cells of a grid (rows, columns, ...) -> (P, ...), those of each block of merge × merge together."""
    rows, columns, *rest = cells.shape
    split = cells.reshape(rows // merge, merge, columns // merge, merge, *rest)
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows * columns, *rest)


def interpolation(grid: tuple[int, int], side: int, merge: int) -> tuple[NDArray[np.int32], Float32]:
    """Where a grid of patches falls into a square table of `side` × `side` positions whose corners are its corners.

    For each patch, in blocks, its four neighbours (4, P) in the table, and their shares (4, P).
    """
    taps, shares = zip(*(_along(count, side) for count in grid), strict=True)
    index = taps[0][:, None, :, None] * side + taps[1][None, :, None, :]  # (2, 2, rows, columns)
    share = shares[0][:, None, :, None] * shares[1][None, :, None, :]
    found = [in_blocks(np.moveaxis(x.reshape(4, *grid), 0, -1), merge).T for x in (index, share)]
    return np.ascontiguousarray(found[0], np.int32), np.ascontiguousarray(found[1], np.float32)


def _along(count: int, side: int) -> tuple[NDArray[np.int64], Float32]:
    """The two neighbours (2, count) of each point along one side, and their shares."""
    at = np.arange(count, dtype=np.float32) * np.float32(side - 1) / np.float32(max(count - 1, 1))
    low = np.minimum(np.floor(at).astype(np.int64), side - 1)
    share = (at - low).astype(np.float32)
    return np.stack([low, np.minimum(low + 1, side - 1)]), np.stack([1 - share, share])
