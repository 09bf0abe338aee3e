"""Tensor data of a checkpoint as float32, a few rows at a time; implements `hf2q.types.Rows`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf2q.errors import ContractError, TensorMismatchError
from hf2q.formats.files import Identity, read_unchanged
from hf2q.formats.safetensors.header import BITS
from hf2q.types import Shape, TensorInfo

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32

_STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I32": "<i4", "I64": "<i8"}

_EXACT_INTEGERS = 1 << 24


class RawRows:
    """The bytes of one tensor of a file, whatever its dtype; a size that is no whole number of bytes is not for it.

    Each read opens the file for itself, so nothing has to be closed and threads do not meet. A file that changed since
    its header was read is noticed.
    """

    def __init__(self, directory: str, info: TensorInfo, identity: Identity) -> None:
        self._path = str(Path(directory, info.file))
        self._info = info
        self._identity = identity
        self._size = (info.shape[-1] if info.shape else 1) * BITS[info.dtype] // 8
        self._rows = math.prod(info.shape[:-1])

    def read(self, start: int, stop: int) -> Bytes:
        """Rows `start` to `stop` as a new C-contiguous uint8 array (stop - start, bytes of a row). Thread-safe.

        Errors: ContractError when the tensor has no such rows; SourceError and FormatError when the file cannot be
        read any more.
        """
        if not 0 <= start <= stop <= self._rows:
            raise ContractError(
                f"{self._path}: rows {start} to {stop} of tensor {self._info.name!r} were asked for, "
                f"expected a range within its {self._rows}"
            )
        data = np.empty((stop - start, self._size), np.uint8)
        if data.size:
            offset = self._info.offset + start * self._size
            read_unchanged(self._path, self._identity, data.data.cast("B"), offset)
        return data


class StoredRows:
    """One tensor of a file, read as by `RawRows`.

    Errors: TensorMismatchError for a dtype that has no plain float32 values.
    """

    def __init__(self, directory: str, info: TensorInfo, identity: Identity) -> None:
        self._path = str(Path(directory, info.file))
        self._info = info
        self._raw = RawRows(directory, info, identity)
        if info.dtype not in _STORED:
            raise TensorMismatchError(
                f"{self._path}: tensor {info.name!r} has the dtype {info.dtype}, which cannot be read as weights; "
                f"expected one of {', '.join(_STORED)}"
            )

    @property
    def shape(self) -> Shape:
        """As the file has it."""
        return self._info.shape

    @property
    def dtype(self) -> str:
        """As the file has it."""
        return self._info.dtype

    def read(self, start: int, stop: int) -> Float32:
        """Rows `start` to `stop` as a new C-contiguous float32 array (stop - start, columns). Thread-safe.

        F32, F16 and BF16 are exact. I32 and I64 are exact, and refused where float32 would round them. F64 is rounded
        to nearest even as torch's ``float()`` does, and refused where a finite value would become infinite.

        Errors: as of `RawRows.read`; TensorMismatchError.
        """
        values = self._raw.read(start, stop).view(_STORED[self._info.dtype])
        if self._info.dtype == "BF16":
            return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if self._info.dtype == "F64":
            return self._narrow(values)
        if self._info.dtype in ("I32", "I64"):
            return self._whole(values)
        return values.astype(np.float32, copy=False)

    def _narrow(self, values: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Float32:
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        if np.any(np.isinf(narrow) & np.isfinite(values)):
            raise TensorMismatchError(
                f"{self._path}: tensor {self._info.name!r} holds F64 values beyond the range of float32"
            )
        return narrow

    def _whole(self, values: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Float32:
        if values.size and not -_EXACT_INTEGERS < int(values.min()) <= int(values.max()) < _EXACT_INTEGERS:
            raise TensorMismatchError(
                f"{self._path}: tensor {self._info.name!r} holds integers of {_EXACT_INTEGERS} or more in magnitude, "
                "expected a table of small numbers"
            )
        return values.astype(np.float32)
