"""Lazy views on tensors, the parts that transforms are built from.

A view reads a few rows at a time, so that converting needs memory for a few rows and never for a whole tensor. Each
function takes `Rows` and returns `Rows`; nothing is read before `read` is called. All are thread-safe if their inputs
are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from hf2q.errors import ContractError, TensorMismatchError
from hf2q.types import Rows, Shape

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32

Index = NDArray[np.intp]


class View:
    """Rows made by a function of (start, stop).

    `packed` is the GGUF type whose blocks `stored` gives, (start, stop) -> uint8 (stop - start, bytes of a row), where
    the source holds the values in such a form that they need not be encoded; "" where it does not. `held` is how many
    bytes reading holds for each thread besides the rows that it gives: 0 for views that hold nothing of any size.
    """

    def __init__(
        self,
        shape: Shape,
        dtype: str,
        read: Callable[[int, int], Float32],
        *,
        packed: str = "",
        stored: Callable[[int, int], Bytes] | None = None,
        held: int = 0,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.packed = packed
        self.held = held
        self._read = read
        self._stored = stored

    def stored(self, start: int, stop: int) -> Bytes:
        """Rows `start` to `stop` as blocks of the type `packed`. Errors: ContractError when there is none."""
        if self._stored is None:
            raise ContractError(f"rows of {self.dtype} have no blocks of a GGUF type")
        return self._stored(start, stop)

    def read(self, start: int, stop: int) -> Float32:
        """Rows `start` to `stop`, float32 (stop - start, columns)."""
        return self._read(start, stop)


def packed_as(rows: Rows) -> str:
    """The GGUF type whose blocks these rows can give without encoding (see `View`), or ""."""
    return str(getattr(rows, "packed", ""))


def held_by(rows: Rows) -> int:
    """Bytes that reading these rows holds for each thread besides them; see `View`."""
    return int(getattr(rows, "held", 0))


def n_rows(rows: Rows) -> int:
    """Number of matrix rows: the product of all sizes but the last. A vector has one row, and so has a scalar."""
    return prod(rows.shape[:-1])


def from_array(array: Float32, dtype: str = "F32") -> Rows:
    """An array in memory."""
    matrix = array.reshape(-1, array.shape[-1])
    return View(array.shape, dtype, lambda start, stop: matrix[start:stop].copy())


def reshape(rows: Rows, shape: Shape) -> Rows:
    """The same values under another shape with the same last size, or with sizes of 1 added or dropped anywhere.

    Errors: TensorMismatchError when the number of values differs, or rows would have to be regrouped.
    """
    if prod(shape) != prod(rows.shape):
        raise TensorMismatchError(f"cannot view a tensor of shape {rows.shape} as {shape}")
    if shape[-1] == rows.shape[-1]:
        return View(shape, rows.dtype, rows.read)
    columns, own = shape[-1], rows.shape[-1]
    if own % columns == 0:  # each of our rows becomes several
        per = own // columns

        def split(start: int, stop: int) -> Float32:
            first = start // per
            block = rows.read(first, -(-stop // per)).reshape(-1, columns)
            return np.ascontiguousarray(block[start - first * per : stop - first * per])

        return View(shape, rows.dtype, split)
    if columns % own == 0:  # several of our rows become one
        per = columns // own
        return View(shape, rows.dtype, lambda start, stop: rows.read(start * per, stop * per).reshape(-1, columns))
    raise TensorMismatchError(f"cannot view rows of {own} values as rows of {columns}")


def slice_rows(rows: Rows, start: int, stop: int, shape: Shape) -> Rows:
    """Matrix rows `start` to `stop`, seen with `shape`."""
    return View(shape, rows.dtype, lambda a, b: rows.read(start + a, start + b))


def gather_rows(rows: Rows, index: Index) -> Rows:
    """Row k of the result is row index[k]: all rows, in a new order."""
    if len(index) != n_rows(rows):
        raise TensorMismatchError(f"{len(index)} rows wanted in a new order, the tensor has {n_rows(rows)}")
    return take_rows(rows, index, rows.shape)


def take_rows(rows: Rows, index: Index, shape: Shape) -> Rows:
    """Row k of the result is row index[k], seen with `shape`. Consecutive indices are read together."""
    fits = len(index) == prod(shape[:-1]) and rows.shape[-1] == shape[-1]
    if not fits or (len(index) and not 0 <= index.min() <= index.max() < n_rows(rows)):
        raise TensorMismatchError(f"cannot take {len(index)} rows of a tensor of shape {rows.shape} as one of {shape}")

    def read(start: int, stop: int) -> Float32:
        wanted = index[start:stop]
        out = np.empty((len(wanted), rows.shape[-1]), np.float32)
        breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
        at = 0
        for end in (*breaks.tolist(), len(wanted)) if len(wanted) else ():
            out[at:end] = rows.read(int(wanted[at]), int(wanted[at]) + end - at)
            at = end
        return out

    return View(shape, rows.dtype, read)


def gather_columns(rows: Rows, index: Index) -> Rows:
    """Column k of the result is column index[k]."""
    if len(index) != rows.shape[-1]:
        raise TensorMismatchError(f"{len(index)} columns wanted in a new order, the tensor has {rows.shape[-1]}")
    return View(rows.shape, rows.dtype, lambda a, b: np.ascontiguousarray(rows.read(a, b)[:, index]))


def elementwise(rows: Rows, function: Callable[[Float32], Float32]) -> Rows:
    """A float32 function of each value. The result counts as F32: it is no longer a value of the checkpoint."""
    return View(rows.shape, "F32", lambda a, b: function(rows.read(a, b)).astype(np.float32, copy=False))


def stack(parts: Sequence[Rows]) -> Rows:
    """Tensors of one shape on a new first axis."""
    shape = parts[0].shape
    if any(part.shape != shape for part in parts):
        raise TensorMismatchError(f"cannot stack tensors of shapes {sorted({part.shape for part in parts})}")
    return _joined(parts, (len(parts), *shape))


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Tensors that differ in their first size only, one after the other."""
    tail = parts[0].shape[1:]
    if any(part.shape[1:] != tail for part in parts):
        raise TensorMismatchError(f"cannot join tensors of shapes {sorted({part.shape for part in parts})}")
    return _joined(parts, (sum(part.shape[0] for part in parts), *tail))


def _joined(parts: Sequence[Rows], shape: Shape) -> Rows:
    dtypes = {part.dtype for part in parts}
    if len(dtypes) != 1:
        raise TensorMismatchError(f"cannot join tensors of dtypes {sorted(dtypes)}")
    ends = np.cumsum([n_rows(part) for part in parts])

    def places(start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        k = int(np.searchsorted(ends, start, side="right"))
        while start < stop:
            base = int(ends[k - 1]) if k else 0
            end = min(stop, int(ends[k]))
            yield k, start - base, end - base
            start, k = end, k + 1

    def read(start: int, stop: int) -> Float32:
        pieces = [parts[k].read(a, b) for k, a, b in places(start, stop)]
        return np.concatenate(pieces) if pieces else np.empty((0, shape[-1]), np.float32)

    forms = {packed_as(part) for part in parts}
    if len(forms) != 1 or not all(isinstance(part, View) for part in parts):
        return View(shape, dtypes.pop(), read)
    views = cast("Sequence[View]", parts)

    def stored(start: int, stop: int) -> Bytes:
        return np.concatenate([views[k].stored(a, b) for k, a, b in places(start, stop)])

    return View(shape, dtypes.pop(), read, packed=forms.pop(), stored=stored)
