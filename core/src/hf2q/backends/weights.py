"""`Weights`: the tensors of a model file, handed to a graph by GGUF name in the form its backend computes with.

Nothing is read before it is asked for, so what a graph does not use (MTP blocks) costs nothing. What loading changed
is added up: a qtype that the backend cannot compute with is decoded, and `summary` says what that costs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from hf2q.backends.ops import Array, Matrix, Ops
from hf2q.codec import QuantCodec
from hf2q.errors import LoadError
from hf2q.formats.finite import KNOWN, Bad, first_bad
from hf2q.types import Record, Shape

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32

log = logging.getLogger(__name__)

_DECODED_AT_ONCE = 1 << 20
"""Bytes."""


class Stored(Protocol):
    """One tensor of a source: numpy-order shape, and the qtype of its data."""

    @property
    def shape(self) -> Shape: ...
    @property
    def qtype(self) -> str: ...


class Source(Protocol):
    """Where tensors come from: an open GGUF file, or `ArraySource`. Errors begin with its `path`."""

    @property
    def path(self) -> str: ...
    @property
    def tensors(self) -> Mapping[str, Stored]: ...

    @property
    def mapped(self) -> bool:
        """Whether `rows` are views of a file mapped into memory, whose pages anybody may let go of."""
        ...

    def rows(self, name: str) -> Bytes:
        """The data of a tensor, uint8 (rows, bytes per row)."""
        ...

    def release(self, name: str, first: int = 0, last: int | None = None) -> None:
        """Rows of a tensor are not needed any more: they are in memory in the form that the backend computes with."""
        ...


@runtime_checkable
class Adopts(Protocol):
    """A backend that takes matrices over in the background, while loading goes on."""

    def adopt(
        self,
        blocks: Bytes,
        codec: QuantCodec,
        shape: Shape,
        checked: Callable[[int, int], None],
        *,
        mapped: bool = False,
        later: bool = False,
    ) -> Matrix:
        """`Ops.matrix` that may return before it is done; with `later` even before the first product with it.

        Rows that hold a scale, or a value of a float type, that is not finite are handed to `checked` (first, one after
        the last), which raises. Of `mapped` blocks pages are let go of once they have been read.
        """
        ...

    def adopted(self) -> None:
        """Return when all that was adopted, but for what may come `later`, is there. Errors: what `checked` raises."""
        ...


class ArrayTensor(Record, frozen=True, kw_only=True):
    """A tensor of an `ArraySource`."""

    shape: Shape
    qtype: str = "F32"


class ArraySource:
    """float32 arrays in memory, by GGUF name: for tests of graphs."""

    path = "arrays in memory"
    mapped = False

    def __init__(self, arrays: Mapping[str, Float32]) -> None:
        self._arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
        self.tensors = {name: ArrayTensor(shape=array.shape) for name, array in self._arrays.items()}

    def rows(self, name: str) -> Bytes:
        """The data of a tensor, uint8 (rows, bytes per row)."""
        array = self._arrays[name]
        return array.reshape(-1, array.shape[-1]).view(np.uint8)

    def release(self, name: str, first: int = 0, last: int | None = None) -> None:
        """Nothing: the caller's arrays are the caller's."""


class LoadedType(Record, frozen=True, kw_only=True):
    """What became of the matrices of one qtype: how many, their bytes in the file and in memory."""

    qtype: str
    quantized: bool
    tensors: int
    file_bytes: int
    memory_bytes: int


def _first_bad_value(rows: Bytes, codec: QuantCodec) -> Bad | None:
    """As `first_bad`, of a type whose layout only its codec knows: all is decoded, some rows at a time."""
    step = max(1, _DECODED_AT_ONCE // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        values = codec.decode(np.ascontiguousarray(rows[start : start + step]))
        if not np.isfinite(values).all():
            row, column = (int(index) for index in np.argwhere(~np.isfinite(values))[0])
            value = float(values[row, column])
            return Bad(row=start + row, at=column // codec.block_size, value=value)
    return None


class Weights:
    """Tensors by GGUF name. `codec` finds the codec of a qtype; its errors say what to install.

    Every tensor that is asked for is checked first: its scales, or the values of a float type, are finite numbers.
    `later`: a backend that can may leave this, and all else that loading takes, to the first products.
    """

    def __init__(self, source: Source, codec: Callable[[str], QuantCodec], ops: Ops, *, later: bool = False) -> None:
        self._later = later
        self._source = source
        self._codec = codec
        self._ops = ops
        self._loaded: dict[tuple[str, bool], LoadedType] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._source.tensors

    def matrix(self, name: str, *, groups: int = 0) -> Matrix:
        """A weight (out, in), or a stack of experts (E, out, in), for `Ops.linear`, `Ops.embedding` and `Ops.moe`.

        With `groups`, rows that are stored together are handed over group by group, (groups, out, in), for
        `Ops.grouped_linear`.
        """
        stored = self._stored(name)
        rows = self._source.rows(name)
        shape = (groups, stored.shape[0] // groups, stored.shape[-1]) if groups else stored.shape
        codec = self._codec(stored.qtype)
        if isinstance(self._ops, Adopts):
            check, mapped = partial(self._check, name, stored, rows), self._source.mapped
            matrix = self._ops.adopt(rows, codec, shape, check, mapped=mapped, later=self._later)
        else:
            self._check(name, stored, rows)
            matrix = self._ops.matrix(rows, codec, shape)
            self._source.release(name)
        self._count(stored.qtype, matrix.quantized, rows.nbytes, matrix.nbytes)
        return matrix

    def finish(self) -> None:
        """Return when all matrices are there. Errors: LoadError for numbers that are not finite."""
        if isinstance(self._ops, Adopts):
            self._ops.adopted()

    def array(self, name: str) -> Array:
        """A small tensor of any shape (norms, biases, convolutions), decoded to float32."""
        stored = self._stored(name)
        rows = self._source.rows(name)
        self._check(name, stored, rows)
        values = self._codec(stored.qtype).decode(np.ascontiguousarray(rows)).reshape(stored.shape)
        array = self._ops.asarray(values)
        self._ops.eval(array)
        self._count(stored.qtype, False, rows.nbytes, values.nbytes)
        return array

    def _stored(self, name: str) -> Stored:
        stored = self._source.tensors.get(name)
        if stored is None:
            raise LoadError(f"{self._source.path}: the tensor {name!r} is missing, which the graph needs")
        return stored

    def _check(self, name: str, stored: Stored, rows: Bytes, first: int = 0, last: int | None = None) -> None:
        """Errors: LoadError when a scale, or a value of a float type, in these rows is infinite or NaN."""
        codec = self._codec(stored.qtype)
        if codec.integers:
            return
        rows = rows[first:last]
        bad = first_bad(rows, stored.qtype) if stored.qtype in KNOWN else _first_bad_value(rows, codec)
        if bad is not None:
            of_floats = codec.block_size == 1
            raise LoadError(
                f"{self._source.path}: tensor {name!r} ({stored.qtype}) holds {bad.value} in row {first + bad.row}, "
                f"{f'column {bad.at}' if of_floats else f'as a scale of block {bad.at}'}; expected finite numbers",
                hint="the file is damaged, or was converted from a damaged checkpoint: download or convert it again",
            )

    def _count(self, qtype: str, quantized: bool, file_bytes: int, memory_bytes: int) -> None:
        old = self._loaded.get((qtype, quantized))
        self._loaded[qtype, quantized] = LoadedType(
            qtype=qtype,
            quantized=quantized,
            tensors=1 + (old.tensors if old else 0),
            file_bytes=file_bytes + (old.file_bytes if old else 0),
            memory_bytes=memory_bytes + (old.memory_bytes if old else 0),
        )

    @property
    def loaded(self) -> tuple[LoadedType, ...]:
        """What was loaded so far, by qtype."""
        return tuple(self._loaded[key] for key in sorted(self._loaded))

    @property
    def nbytes(self) -> int:
        """Memory that the loaded tensors take."""
        return sum(loaded.memory_bytes for loaded in self._loaded.values())

    def log_summary(self) -> None:
        """One INFO line for each qtype: whether it runs as stored, and what decoding it costs."""
        for item in self.loaded:
            how = "run as stored" if item.quantized or item.qtype == "F32" else "decoded to float32"
            log.info(
                "%s: %d tensors %s, %.1f MB in the file, %.1f MB in memory",
                item.qtype,
                item.tensors,
                how,
                item.file_bytes / 1e6,
                item.memory_bytes / 1e6,
            )
