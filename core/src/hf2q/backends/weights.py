"""`Weights`: the tensors of a model file, handed to a graph by GGUF name in the form its backend computes with.

Nothing is read before it is asked for, so what a graph does not use (MTP blocks) costs nothing. What loading changed
is added up: a qtype that the backend cannot compute with is decoded, and `summary` says what that costs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from hf2q.backends.ops import Array, Matrix, Ops
from hf2q.codec import QuantCodec
from hf2q.errors import LoadError
from hf2q.types import Record, Shape

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32

log = logging.getLogger(__name__)


class Stored(Protocol):
    """One tensor of a source: numpy-order shape, and the qtype of its data."""

    @property
    def shape(self) -> Shape: ...
    @property
    def qtype(self) -> str: ...


class Source(Protocol):
    """Where tensors come from: an open GGUF file, or `ArraySource`."""

    @property
    def tensors(self) -> Mapping[str, Stored]: ...

    def rows(self, name: str) -> Bytes:
        """The data of a tensor, uint8 (rows, bytes per row)."""
        ...


class ArrayTensor(Record, frozen=True, kw_only=True):
    """A tensor of an `ArraySource`."""

    shape: Shape
    qtype: str = "F32"


class ArraySource:
    """float32 arrays in memory, by GGUF name: for tests of graphs."""

    def __init__(self, arrays: Mapping[str, Float32]) -> None:
        self._arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
        self.tensors = {name: ArrayTensor(shape=array.shape) for name, array in self._arrays.items()}

    def rows(self, name: str) -> Bytes:
        """The data of a tensor, uint8 (rows, bytes per row)."""
        array = self._arrays[name]
        return array.reshape(-1, array.shape[-1]).view(np.uint8)


class LoadedType(Record, frozen=True, kw_only=True):
    """What became of the matrices of one qtype: how many, their bytes in the file and in memory."""

    qtype: str
    quantized: bool
    tensors: int
    file_bytes: int
    memory_bytes: int


class Weights:
    """Tensors by GGUF name. `codec` finds the codec of a qtype; its errors say what to install."""

    def __init__(self, source: Source, codec: Callable[[str], QuantCodec], ops: Ops) -> None:
        self._source = source
        self._codec = codec
        self._ops = ops
        self._loaded: dict[tuple[str, bool], LoadedType] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._source.tensors

    def matrix(self, name: str) -> Matrix:
        """A weight (out, in), or a stack of experts (E, out, in), for `Ops.linear`, `Ops.embedding` and `Ops.moe`."""
        stored = self._stored(name)
        rows = self._source.rows(name)
        matrix = self._ops.matrix(rows, self._codec(stored.qtype), stored.shape)
        self._count(stored.qtype, matrix.quantized, rows.nbytes, matrix.nbytes)
        return matrix

    def array(self, name: str) -> Array:
        """A small tensor of any shape (norms, biases, convolutions), decoded to float32."""
        stored = self._stored(name)
        rows = self._source.rows(name)
        values = self._codec(stored.qtype).decode(np.ascontiguousarray(rows)).reshape(stored.shape)
        array = self._ops.asarray(values)
        self._ops.eval(array)
        self._count(stored.qtype, False, rows.nbytes, values.nbytes)
        return array

    def _stored(self, name: str) -> Stored:
        stored = self._source.tensors.get(name)
        if stored is None:
            raise LoadError(f"the model file lacks the tensor {name!r}, which the graph needs")
        return stored

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
