"""`Matrix`: a weight, or a stack of experts, repacked for the kernels; `leaves` gives the kernels of a qtype."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.backends.cpu import repack as words
from hf2q.backends.cpu.blocks import BLOCKS, points_of
from hf2q.backends.cpu.floats import READERS, exact_kernels, float_kernels
from hf2q.backends.cpu.integer import kernels
from hf2q.backends.cpu.isa import multiplies_tiles
from hf2q.backends.cpu.linear_job import each_unit
from hf2q.backends.cpu.memory import address
from hf2q.backends.cpu.native import entry
from hf2q.backends.cpu.repack import repack
from hf2q.backends.cpu.team import Team
from hf2q.backends.cpu.tiled import tiled_kernels
from hf2q.errors import LoadError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.codec import QuantCodec
    from hf2q.types import Bytes, Shape

PIECE = 1 << 24
"""Bytes of a source repacked at a time (and at least sixteen rows)."""

QTYPES = (*BLOCKS, *READERS)
"""What a `Matrix` can hold. Others are decoded to F32 first."""


@cache
def leaves(qtype: str) -> dict[str, Any]:
    """The kernels of a qtype by name; each is compiled, or loaded from disk, when `entry_of` first wants it."""
    if qtype in READERS:
        return dict(float_kernels(qtype))
    block = BLOCKS[qtype]
    return {**kernels(block), **exact_kernels(block), **(tiled_kernels(block) if multiplies_tiles() else {})}


@cache
def entry_of(qtype: str, name: str) -> int:
    """The address of a kernel of a qtype."""
    return entry(leaves(qtype)[name])


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
        read: Bytes | Callable[[int, int], Bytes],
        shape: Shape,
        *,
        loaded: Callable[[int], None] | None = None,
    ) -> Matrix:
        """Repack the blocks of `codec`, uint8 (rows of all experts, bytes per row).

        `read` is the array, or gives its rows from a first to before a last one: then only a few megabytes of the
        source are in memory at a time. `loaded` is told of source bytes done, piece by piece.
        Errors: LoadError for a qtype not in QTYPES, or for a source that does not fit the shape.
        """
        if codec.name not in QTYPES:
            raise LoadError(f"the cpu backend has no kernels for {codec.name}, only for {', '.join(QTYPES)}")
        if len(shape) not in (2, 3) or min(shape) < 1 or shape[-1] % codec.block_size:
            raise LoadError(
                f"a {codec.name} weight has 2 or 3 dimensions and whole blocks of {codec.block_size}, found {shape}"
            )
        experts, (rows, columns) = (shape[0] if len(shape) == 3 else 1), shape[-2:]
        row_bytes = columns // codec.block_size * codec.type_size
        if not callable(read) and read.shape != (experts * rows, row_bytes):
            raise LoadError(
                f"{codec.name} {shape} takes {experts * rows} rows of {row_bytes} bytes, found {read.shape}"
            )
        groups = -(-rows // 16)
        weights = team.arena.take(experts * groups * 16 * row_bytes)
        units = _units(codec.name, row_bytes)
        at_once = max(1, PIECE // (16 * row_bytes)) * 16
        for expert in range(experts):
            for start in range(0, rows, at_once):
                stop = min(rows, start + at_once)
                first, last = expert * rows + start, expert * rows + stop
                raw = np.ascontiguousarray(read(first, last) if callable(read) else read[first:last])
                if raw.dtype != np.uint8 or raw.shape != (stop - start, row_bytes):
                    raise LoadError(
                        f"rows {first} to {last} came as {raw.dtype} {raw.shape}, expected {row_bytes} bytes each"
                    )
                target = address(weights) + (expert * groups + start // 16) * 16 * row_bytes
                _repack(team, raw, target, codec.type_size if codec.name in BLOCKS else row_bytes, units)
                if loaded is not None:
                    loaded(raw.nbytes)
        table = points_of(codec) if codec.name in BLOCKS and BLOCKS[codec.name].points else None
        return cls(codec.name, shape, weights, table)


def _units(qtype: str, row_bytes: int) -> NDArray[np.int64]:
    """The fields of a block; a row of floats is one block of one field."""
    if qtype in READERS:
        unit = READERS[qtype][0]
        return np.array([[unit, row_bytes // unit]], np.int64)
    return np.array(BLOCKS[qtype].units, np.int64)


def _repack(team: Team, raw: Bytes, target: int, block_bytes: int, units: NDArray[np.int64]) -> None:
    job = np.zeros(8, np.int64)
    job[words.RAW], job[words.ROWS], job[words.ROW_BYTES] = address(raw), *raw.shape
    job[words.PACKED], job[words.BLOCK_BYTES] = target, block_bytes
    job[words.UNITS], job[words.UNIT_COUNT] = address(units), len(units)
    groups = -(-len(raw) // 16)
    calls = np.array([entry(repack), address(job), groups], np.int64)
    team.run(each_unit, address(calls))
