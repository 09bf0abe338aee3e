"""Weights in FP8 and FP4 times their scales, a few rows at a time. Below `scaled`, which finds the pairs.

A scale belongs to a block of rows and columns of one matrix. A weight (out, in) has scales (⌈out/r⌉, ⌈in/c⌉) for blocks
of r x c, of which the last in a row or column may be cut off; one scale for each row (out) or (out, 1); or one for all.
Further sizes in front count matrices. The product is computed in float32, as torch and llama.cpp do; with a power of
two as scale it is exact.

Sources: transformers, integrations/finegrained_fp8.py (`Fp8Dequantize`); llama.cpp, conversion/base.py
(`dequant_model`, `repack_mxfp4_blocks`).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from hf2q import rows
from hf2q.codec import check_finite
from hf2q.errors import FormatError, TensorMismatchError
from hf2q.formats.safetensors import Checkpoint
from hf2q.formats.small_floats import e2m1_pairs, e4m3, e8m0
from hf2q.rows import Index
from hf2q.types import Record, Rows, Shape, TensorInfo

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32

FP8, FP4 = "F8_E4M3", "F4_E2M1"
USUAL = (128, 128)
GROUP = 32
"""Values that share a scale in a row of FP4."""
NAN_SCALE = 255
NEARLY_TOO_LARGE = 253
"""E8M0 codes from here on may carry an FP4 value beyond float32."""


class Grid(Record, frozen=True, kw_only=True):
    """How scales lie over a weight.

    `matrix` rows in a matrix, `height` rows and `width` columns in a block; `down` and `across` scales for a matrix;
    `shared`: all matrices have the same ones.
    """

    matrix: int
    height: int
    width: int
    down: int
    across: int
    shared: bool

    def scale_rows(self, start: int, stop: int) -> Index:
        """For each weight row from `start` to `stop` the row of scales that belongs to it."""
        index = np.arange(start, stop)
        inside = index % self.matrix // self.height
        return inside if self.shared else index // self.matrix * self.down + inside


def grid_of(weight: Shape, scale: Shape, stated: tuple[int, int] | None) -> Grid | None:
    """The grid of scales of shape `scale` over a weight of shape `weight`, None when there is none.

    Blocks have the stated size where that gives the number of scales there are, else the size that divides the weight
    evenly. Where none is stated even division comes first, then the usual 128.
    """
    weight = weight if len(weight) > 1 else (1, *weight)
    if prod(scale) == 1:
        return Grid(matrix=weight[-2], height=weight[-2], width=weight[-1], down=1, across=1, shared=True)
    scale = (*scale, *(1,) * (len(weight) - len(scale)))
    leading = scale[:-2]
    if len(scale) != len(weight) or (leading != weight[:-2] and prod(leading) != 1):
        return None
    sizes = [
        _block(size, count, block, stated is not None)
        for size, count, block in zip(weight[-2:], scale[-2:], stated or USUAL, strict=True)
    ]
    if None in sizes:
        return None
    height, width = (size for size in sizes if size is not None)
    shared = leading != weight[:-2]
    return Grid(matrix=weight[-2], height=height, width=width, down=scale[-2], across=scale[-1], shared=shared)


def _block(size: int, count: int, block: int, stated: bool) -> int | None:
    if count == 1:
        return size
    cut = block if -(-size // block) == count else None
    even = size // count if count and size % count == 0 else None
    return (cut or even) if stated else (even or cut)


class Scales:
    """The scales of one weight. Errors: TensorMismatchError when they do not lie over it in any known way."""

    def __init__(self, checkpoint: Checkpoint, weight: str, shape: Shape, scale: TensorInfo, grid: Grid | None) -> None:
        if grid is None:
            raise TensorMismatchError(
                f"{checkpoint.directory}: {scale.name!r} has the shape {scale.shape}, which gives no scales for blocks "
                f"of {weight!r}, whose shape is {shape}",
                hint="weight_block_size of config.json does not fit, or the checkpoint is damaged",
            )
        self._grid = grid
        self._name = scale.name
        self._where = checkpoint.directory
        self.codes = checkpoint.raw(scale.name)
        flat = scale.shape or (1,)
        if scale.dtype in ("F8_E8M0", "U8"):
            stored: Rows = rows.View(flat, scale.dtype, self._powers)
        else:
            stored = rows.View(flat, scale.dtype, checkpoint.rows(scale.name).read)
        matrices = prod(flat) // (grid.down * grid.across)
        self._rows = rows.reshape(stored, (matrices * grid.down, grid.across))

    def multiply(self, x: Float32, start: int) -> None:
        """Multiply x (rows, columns), whose first row is row `start` of the weight, in place."""
        if not x.size:
            return
        index = self._grid.scale_rows(start, start + len(x))
        first = int(index.min())
        factors = self._rows.read(first, int(index.max()) + 1)
        self._check(factors, first)
        own = factors[index - first]
        width = self._grid.width
        with np.errstate(over="ignore", under="ignore"):  # infinity is found, and named, by whoever encodes
            if x.shape[1] == own.shape[1] * width:
                blocks = x.reshape(len(x), own.shape[1], width)
                blocks *= own[:, :, None]
            else:
                x *= np.repeat(own, width, axis=1)[:, : x.shape[1]]

    def _powers(self, start: int, stop: int) -> Float32:
        return e8m0()[self.codes.read(start, stop)]

    def _check(self, factors: Float32, first: int) -> None:
        if np.isfinite(factors).all():
            return
        row, column = (int(place) for place in np.argwhere(~np.isfinite(factors))[0])
        raise FormatError(
            f"{self._where}: {self._name!r} holds {factors[row, column]} at row {first + row}, column {column}, "
            "which is no scale",
            hint="the checkpoint is damaged: download it again",
        )


def fp8_rows(checkpoint: Checkpoint, info: TensorInfo, scale: TensorInfo, stated: tuple[int, int] | None) -> rows.View:
    """E4M3 values times their scales, under the weight's own name and shape.

    Errors: TensorMismatchError for a grid that is not understood; when read, FormatError for NaN, with its place.
    """
    scales = Scales(checkpoint, info.name, info.shape, scale, grid_of(info.shape, scale.shape, stated))
    codes = checkpoint.raw(info.name)

    def read(start: int, stop: int) -> Float32:
        found = codes.read(start, stop)
        values = e4m3()[found]
        if (nan := np.isnan(values)).any():
            row, column = (int(place) for place in np.argwhere(nan)[0])
            raise FormatError(
                f"{checkpoint.directory}: {info.name!r} holds the code {found[row, column]:#04x}, NaN in E4M3, at row "
                f"{start + row}, column {column}",
                hint="the checkpoint is damaged: download it again",
            )
        scales.multiply(values, start)
        return values

    return rows.View(info.shape, FP8, read)


def fp4_rows(checkpoint: Checkpoint, info: TensorInfo, scale: TensorInfo) -> rows.View:
    """E2M1 values, two in a byte, times the E8M0 scales of groups of 32; also as ggml's blocks of MXFP4, bit by bit.

    Errors: TensorMismatchError for scales of another shape; when read, FormatError for NaN, with its place.
    """
    shape = unpacked(info.shape)
    fits = scale.shape == (*shape[:-1], shape[-1] // GROUP) and shape[-1] % GROUP == 0
    grid = Grid(
        matrix=prod(shape[:-1]),
        height=1,
        width=GROUP,
        down=prod(shape[:-1]),
        across=shape[-1] // GROUP,
        shared=True,
    )
    scales = Scales(checkpoint, info.name, shape, scale, grid if fits else None)
    codes = checkpoint.raw(info.name)

    def read(start: int, stop: int) -> Float32:
        values = e2m1_pairs()[codes.read(start, stop)].reshape(stop - start, shape[-1])
        scales.multiply(values, start)
        return values

    def stored(start: int, stop: int) -> Bytes:
        powers = scales.codes.read(start, stop)
        if (powers >= NEARLY_TOO_LARGE).any():  # NaN is named by `read`
            check_finite(read(start, stop), "MXFP4", f"tensor {info.name!r} of {checkpoint.directory}", start)
        return mxfp4_blocks(codes.read(start, stop), powers)

    return rows.View(shape, FP4, read, packed="MXFP4", stored=stored)


def unpacked(shape: Shape) -> Shape:
    """The shape of values that are stored two in a byte."""
    return (*shape[:-1], 2 * shape[-1])


def mxfp4_blocks(codes: Bytes, powers: Bytes) -> Bytes:
    """Move nibbles from pairs of neighbours to ggml's order: uint8 (n, in/2) and (n, in/32) -> uint8 (n, in/32 * 17).

    A block is its scale and 16 bytes; byte j holds value j in the low nibble and value j + 16 in the high one. Both
    sides count the same 16 values by the same codes. Source: llama.cpp, ggml/src/ggml-common.h, `block_mxfp4`.
    """
    count, groups = powers.shape
    pairs = codes.reshape(count, groups, GROUP // 2)
    values = np.empty((count, groups, GROUP), np.uint8)
    values[:, :, 0::2] = pairs & 15
    values[:, :, 1::2] = pairs >> 4
    out = np.empty((count, groups, 1 + GROUP // 2), np.uint8)
    out[:, :, 0] = powers
    out[:, :, 1:] = values[:, :, : GROUP // 2] | values[:, :, GROUP // 2 :] << 4
    return out.reshape(count, -1)
