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
from hf2q.backends.cpu.memory import address, aligned
from hf2q.backends.cpu.native import entry
from hf2q.backends.cpu.team import Team
from hf2q.backends.cpu.tiled import tiled_float_kernels, tiled_kernels
from hf2q.errors import LoadError
from hf2q.formats.finite import E8M0_SCALES, HALF_SCALES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.codec import QuantCodec
    from hf2q.types import Bytes, Shape

PIECE = 1 << 22
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


class InFile:
    """A weight as it is in the file: what `repack` is told of it, and what brings it over.

    met  whether a product was asked of it: with the second it is brought over, see `Linear`
    """

    def __init__(
        self,
        codec: QuantCodec,
        rows: Bytes,
        checked: Callable[[int, int], None],
        *,
        mapped: bool,
    ) -> None:
        self.codec, self.rows, self.checked, self.mapped = codec, rows, checked, mapped
        self.met = False
        self.buffers: Bytes = aligned(0)  # what words say of buffers is true as long as this lives
        self.block_bytes = codec.type_size if codec.name in BLOCKS else rows.shape[1]
        self.fields, self.checks = _fields(codec.name, rows.shape[1]), _checks(codec.name)
        self.words = aligned(8 * words.WORDS).view(np.int64)
        self.words[words.ROW_BYTES], self.words[words.BLOCK_BYTES] = rows.shape[1], self.block_bytes
        self.words[words.FIELDS :][:4] = (
            address(self.fields),
            len(self.fields),
            address(self.checks),
            len(self.checks),
        )

    @property
    def bad(self) -> bool:
        """Whether a number that was not finite has been met."""
        return bool(self.words[words.BAD])


class Matrix:
    """Weights (rows, columns), or (experts, rows, columns), of one qtype, in groups of sixteen rows.

    `nbytes` is what the file takes too, but for rows that fill up the last group of each expert. While `in_file` is
    not None they are as the file has them, and `address` is that of the first row there.
    """

    def __init__(self, codec: QuantCodec, shape: Shape, in_file: InFile) -> None:
        self.qtype = codec.name
        self.shape = shape
        self.quantized = codec.name in BLOCKS
        self.experts = shape[0] if len(shape) == 3 else 1
        self.rows, self.columns = shape[-2:]
        self.groups = -(-self.rows // 16)
        self.group_bytes = 16 * in_file.rows.shape[1]
        self.nbytes = self.experts * self.groups * self.group_bytes
        self.in_file: InFile | None = in_file
        self.address = address(in_file.rows)
        table = points_of(codec) if self.quantized and BLOCKS[codec.name].points else None
        self.table = address(table) if table is not None else 0
        self._alive: Any = in_file.rows, table

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
        mapped: bool = False,
        later: bool = False,
    ) -> Matrix:
        """Repack blocks of `codec`, uint8 (rows of all experts, bytes per row), in the background; see `Loading`.

        `checked` is called with the first row and the one after the last of a piece with an infinity or NaN among its
        scales, or the values of a float type, and raises. `mapped`: the blocks are those of a mapped file, whose pages
        are let go of once they have been read.
        `later`: leave them in the file until `repack` is called; not for stacks, which are repacked in any case.
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
        matrix = cls(
            codec, shape, InFile(codec, np.ascontiguousarray(rows), checked, mapped=mapped and rows.flags.c_contiguous)
        )
        if not later or len(shape) == 3:
            matrix.repack(team)
        return matrix

    def repack(self, team: Team) -> None:
        """Bring the weights over in the background; see `Loading`. Errors: what `checked` of earlier ones raises."""
        if (source := self.in_file) is None:
            return
        rows, row_bytes = source.rows, source.rows.shape[1]
        weights = team.arena.take(self.nbytes)
        at_once = max(1, PIECE // self.group_bytes) * 16
        for expert in range(self.experts):
            for start in range(0, self.rows, at_once):
                first, last = expert * self.rows + start, expert * self.rows + min(self.rows, start + at_once)
                team.loading.put(
                    rows[first:last],
                    weights[(expert * self.groups * 16 + start) * row_bytes :],
                    source.block_bytes,
                    source.fields,
                    source.checks,
                    partial(source.checked, first, last),
                    mapped=source.mapped,
                )
        self.in_file, self.address, self._alive = None, address(weights), (weights, self._alive[1])


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
