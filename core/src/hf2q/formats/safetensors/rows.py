"""Tensor data of a checkpoint as float32, a few rows at a time; implements `hf2q.types.Rows`."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf2q.errors import ContractError, FormatError, TensorMismatchError
from hf2q.formats.files import open_regular, read_exactly
from hf2q.formats.safetensors.header import BITS, Identity
from hf2q.types import Shape, TensorInfo

if TYPE_CHECKING:
    from hf2q.types import Float32

_STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}


class StoredRows:
    """One tensor of a file. Each read opens the file for itself, so nothing has to be closed and threads do not meet.

    A file that changed since its header was read is noticed. Errors: TensorMismatchError for a dtype that has no
    plain float32 values.
    """

    def __init__(self, directory: str, info: TensorInfo, identity: Identity) -> None:
        self._path = str(Path(directory, info.file))
        self._info = info
        self._identity = identity
        if info.dtype not in _STORED:
            raise TensorMismatchError(
                f"{self._path}: tensor {info.name!r} has the dtype {info.dtype}, which cannot be read as weights; "
                f"expected one of {', '.join(_STORED)}"
            )
        self._columns = info.shape[-1] if info.shape else 1
        self._rows = math.prod(info.shape[:-1])

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

        F32, F16 and BF16 are exact. F64 is rounded to nearest even as torch's ``float()`` does, and refused where a
        finite value would become infinite.

        Errors: ContractError when the tensor has no such rows; SourceError and FormatError when the file cannot be
        read any more.
        """
        if not 0 <= start <= stop <= self._rows:
            raise ContractError(
                f"{self._path}: rows {start} to {stop} of tensor {self._info.name!r} were asked for, "
                f"expected a range within its {self._rows}"
            )
        values = np.empty((stop - start, self._columns), _STORED[self._info.dtype])
        if values.size:
            self._fill(values.data.cast("B"), start * self._columns * BITS[self._info.dtype] // 8)
        if self._info.dtype == "BF16":
            return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if self._info.dtype == "F64":
            return self._narrow(values)
        return values.astype(np.float32, copy=False)

    def _fill(self, target: memoryview, position: int) -> None:
        descriptor, _ = open_regular(self._path)
        try:
            if Identity.of(descriptor) != self._identity:
                raise FormatError(f"{self._path} changed while it was being read", hint="start again")
            read_exactly(descriptor, target, self._info.offset + position, self._path)
        finally:
            os.close(descriptor)

    def _narrow(self, values: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Float32:
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        if np.any(np.isinf(narrow) & np.isfinite(values)):
            raise TensorMismatchError(
                f"{self._path}: tensor {self._info.name!r} holds F64 values beyond the range of float32"
            )
        return narrow
