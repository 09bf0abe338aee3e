"""The points that the types of grids (IQ2_XS, IQ2_S, IQ3_S, IQ3_XXS) can store, and tables to find the nearest of them.

A group of 8 (IQ2) or 4 (IQ3) weights is stored as the number of one point out of 256 to 1024. A coordinate of a point
is an odd number 2 * level + 1; the levels of a point, packed from the low bits upward (2 bits each for IQ2, else 3),
are its `code` below. Most codes are no point of the grid: for each of them the reference prepares a list of the points
around it and looks for the best one there.

The points are a fact of the format and come from gguf-py (`grid_hex` in gguf/quants.py, where they were taken from
iq2xs_grid, iq2s_grid, iq3s_grid and iq3xxs_grid of ggml-common.h). The lists follow iq2xs_init_impl and
iq3xs_init_impl of ggml-quants.c. numpy only; some 0.1 s at a type's first use.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SHELLS = {"IQ2_XS": 2, "IQ2_S": 1, "IQ3_XXS": 2, "IQ3_S": 3}
"""How many of the smallest distances a list takes in (`nwant` of ggml-quants.c)."""

LENGTH_BITS = 9
"""Of an entry of `Grid.lists`: no list has 512 points."""

SPARE = 64
"""Entries after the last list, so that a kernel may load a vector from any place in one."""


class Grid(NamedTuple):
    """Tables of one type.

    levels     uint8 (points, weights of a group)
    number     int32 (codes,): the number of the point with that code, -1 where there is none
    lists      int32 (codes,): start << LENGTH_BITS | length of the code's list in `near`; 0 for a code that is a
               point, and for one that no weights give
    near       uint16: the codes of the points in all lists, the nearest first, among equally near ones by number
    """

    levels: npt.NDArray[np.uint8]
    number: npt.NDArray[np.int32]
    lists: npt.NDArray[np.int32]
    near: npt.NDArray[np.uint16]


def points(qtype: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """levels (points, weights of a group) of a type, and the magnitude that each level decodes to, before scaling."""
    from gguf import quants

    source = getattr(quants, qtype)
    source.init_grid()
    values = np.array(source.grid_map, np.float32)
    return np.searchsorted(values, source.grid.reshape(source.grid_shape)).astype(np.uint8), values


@cache
def magnitudes(qtype: str) -> npt.NDArray[np.float32]:
    """float32 (points, weights of a group): what the points decode to, before scaling."""
    levels, values = points(qtype)
    decoded: npt.NDArray[np.float32] = values[levels]
    return decoded


@cache
def grid(qtype: str) -> Grid:
    """The tables of a type, made once in a process."""
    levels, values = points(qtype)
    size = levels.shape[1]
    bits = 2 if size == 8 else 3
    shifts = bits * np.arange(size)
    codes = (levels.astype(np.int32) << shifts).sum(1)
    number = np.full(1 << bits * size, -1, np.int32)
    number[codes] = np.arange(len(codes))
    # all codes that weights can give and that are no point, in ascending order, by their levels
    asked = np.indices((len(values),) * size).reshape(size, -1).T[:, ::-1]
    given = (asked << shifts).sum(1)
    outside = number[given] < 0
    asked, given = asked[outside].astype(np.float32), given[outside]
    distance = _distances(asked, levels.astype(np.float32))
    listed = np.flatnonzero(distance <= _reach(distance, SHELLS[qtype])[:, None])  # by row, then by point
    row, point = np.divmod(listed, len(levels))
    # no squared distance reaches 1 << 12: this is by row, then by distance, then by point
    order = np.argsort(row << 12 | distance.reshape(-1)[listed].astype(np.int64), kind="stable")
    near = np.zeros(len(order) + SPARE, np.uint16)
    near[: len(order)] = codes[point[order]]
    length = np.bincount(row, minlength=len(given))
    lists = np.zeros(len(number), np.int32)
    lists[given] = np.cumsum(length) - length << LENGTH_BITS | length
    return Grid(levels, number, lists, near)


def _distances(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Squared distances (len(a), len(b)) of points with small whole coordinates: exact."""
    squared: npt.NDArray[np.float32] = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
    return squared


def _reach(distance: npt.NDArray[np.float32], shells: int) -> npt.NDArray[np.float32]:
    """For each row the `shells`-th smallest of its different values."""
    reach: npt.NDArray[np.float32] = distance.min(1)
    for _ in range(shells - 1):
        reach = np.where(distance > reach[:, None], distance, np.inf).min(1)
    return reach
