"""`Matrix`: a weight, or a stack of experts, repacked for the kernels; `leaves` gives the kernels of a qtype."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.backends.cpu import repack as words
from hf2q.backends.cpu.blocks import BLOCKS, points_of
from hf2q.backends.cpu.floats import READERS, exact_kernels, float_kernels
from hf2q.backends.cpu.integer import kernels
from hf2q.backends.cpu.isa import multiplies_tiles
from hf2q.backends.cpu.memory import address
from hf2q.backends.cpu.native import entry
from hf2q.backends.cpu.team import Team
from hf2q.backends.cpu.tiled import tiled_float_kernels, tiled_kernels
from hf2q.errors import LoadError
from hf2q.formats.finite import E8M0_SCALES, HALF_SCALES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.codec import QuantCodec
    from hf2q.types import Bytes, Shape

PIECE = 1 << 24
"""Bytes of a source that are let go of together (and at least sixteen rows)."""

QTYPES = (*BLOCKS, *READERS)
"""What a `Matrix` can hold. Others are decoded to F32 first."""


@cache
def leaves(qtype: str) -> dict[str, Any]:
    """The kernels of a qtype by name; each is compiled, or loaded from disk, when `entry_of` first wants it."""
    if qtype in READERS:
        return {**float_kernels(qtype), **(tiled_float_kernels(qtype) if multiplies_tiles() else {})}
    block = BLOCKS[qtype]
    return {**kernels(block), **exact_kernels(block), **(tiled_kernels(block) if multiplies_tiles() else {})}


@cache
def entry_of(qtype: str, name: str) -> int:
    """The address of a kernel of a qtype."""
    return entry(leaves(qtype)[name])


def _not_finite(first: int, last: int) -> None:
    raise LoadError(f"a number in the rows {first} to {last - 1} of a weight is infinite or NaN")


def _nothing(first: int, last: int) -> None:
    pass


class Matrix:
    """Weights (rows, columns), or (experts, rows, columns), of one qtype, in groups of sixteen rows.

    `nbytes` is what the file takes too, but for rows that fill up the last group of each expert.
    """

    def __init__(self, qtype: str, shape: Shape, weights: Bytes, table: NDArray[np.int32] | None) -> None:
        self.qtype = qtype
        self.shape = shape
        self.quantized = qtype in BLOCKS
        self.experts = shape[0] if len(shape) == 3 else 1
        self.rows, self.columns = shape[-2:]
        self.groups = -(-self.rows // 16)
        self.nbytes = weights.nbytes
        self.group_bytes = weights.nbytes // max(1, self.experts * self.groups)
        self.address = address(weights)
        self.table = address(table) if table is not None else 0
        self._alive = weights, table

    @staticmethod
    def bytes_of(codec: QuantCodec, shape: Shape) -> int:
        """What `load` would take."""
        *experts, rows, columns = shape
        return prod(experts) * -(-rows // 16) * 16 * codec.row_bytes(columns)

    @classmethod
    def load(
        cls,
        team: Team,
        codec: QuantCodec,
        rows: Bytes,
        shape: Shape,
        *,
        checked: Callable[[int, int], None] = _not_finite,
        done: Callable[[int, int], None] = _nothing,
    ) -> Matrix:
        """Repack blocks of `codec`, uint8 (rows of all experts, bytes per row), in the background; see `Loading`.

        `checked` is called with the first row and the one after the last of a piece with an infinity or NaN among its
        scales, or the values of a float type, and raises; `done` likewise when a piece is not needed any more.
        Errors: LoadError for a qtype not in QTYPES, or rows that do not fit the shape.
        """
        if codec.name not in QTYPES:
            raise LoadError(f"the cpu backend has no kernels for {codec.name}, only for {', '.join(QTYPES)}")
        if len(shape) not in (2, 3) or min(shape) < 1 or shape[-1] % codec.block_size:
            raise LoadError(
                f"a {codec.name} weight has 2 or 3 dimensions and whole blocks of {codec.block_size}, found {shape}"
            )
        experts, (each, columns) = (shape[0] if len(shape) == 3 else 1), shape[-2:]
        row_bytes = columns // codec.block_size * codec.type_size
        if rows.dtype != np.uint8 or rows.shape != (experts * each, row_bytes):
            raise LoadError(
                f"{codec.name} {shape} takes {experts * each} rows of {row_bytes} bytes, "
                f"found {rows.dtype} {rows.shape}"
            )
        rows = np.ascontiguousarray(rows)
        groups = -(-each // 16)
        weights = team.arena.take(experts * groups * 16 * row_bytes)
        fields, checks = _fields(codec.name, row_bytes), _checks(codec.name)
        at_once = max(1, PIECE // (16 * row_bytes)) * 16
        for expert in range(experts):
            for start in range(0, each, at_once):
                first, last = expert * each + start, expert * each + min(each, start + at_once)
                team.loading.put(
                    rows[first:last],
                    address(weights) + (expert * groups + start // 16) * 16 * row_bytes,
                    codec.type_size if codec.name in BLOCKS else row_bytes,
                    fields,
                    checks,
                    partial(checked, first, last),
                    partial(done, first, last),
                )
        table = points_of(codec) if codec.name in BLOCKS and BLOCKS[codec.name].points else None
        return cls(codec.name, shape, weights, table)


def _fields(qtype: str, row_bytes: int) -> NDArray[np.int64]:
    """The fields of a block; a row of floats is one block of one field."""
    if qtype in READERS:
        unit = READERS[qtype][0]
        return np.array([[unit, row_bytes // unit]], np.int64)
    return np.array(BLOCKS[qtype].units, np.int64)


def _checks(qtype: str) -> NDArray[np.int64]:
    """What must be finite in a block."""
    if qtype in READERS:
        return np.array([[{"F16": words.HALVES, "BF16": words.BFLOATS, "F32": words.FLOATS}[qtype], 0]], np.int64)
    if qtype in E8M0_SCALES:
        return np.array([[words.E8M0, E8M0_SCALES[qtype]]], np.int64)
    return np.array([[words.HALF, at] for at in HALF_SCALES[qtype]], np.int64)
