"""Tensors as they should be against those of a file, piece by piece: a writer that compares instead of writing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from hf2q.errors import FormatError
from hf2q.formats.files import open_regular, read_exactly
from hf2q.formats.ggml_types import GGML_TYPES
from hf2q.formats.gguf import GgufFile, GgufTensor
from hf2q.types import Plan, Record, Shape, TensorPlan

if TYPE_CHECKING:
    from hf2q.types import Bytes


class Difference(Record, frozen=True, kw_only=True):
    """Where the bytes of a tensor differ. `offset` is that of the first such byte, from the tensor's beginning.

    row, column  of the weight it belongs to, of the first one of the block where a type has blocks; rows over all
                 leading sizes
    count        how many bytes differ
    """

    offset: int
    row: int
    column: int
    count: int


class TensorCheck(Record, frozen=True, kw_only=True):
    """What became of one tensor.

    status      ``ok``, ``differs`` (its bytes), ``type``, ``shape``, ``missing`` (from the file), ``extra`` (in it)
    qtype, shape                    as the file has it; as expected when it is missing
    expected_qtype, expected_shape  of a status that is about them, else None
    difference                      of the bytes, which are compared wherever shapes allow
    """

    name: str
    status: Literal["ok", "differs", "type", "shape", "missing", "extra"]
    qtype: str
    shape: Shape
    expected_qtype: str | None = None
    expected_shape: Shape | None = None
    difference: Difference | None = None


class ComparingWriter:
    """Takes the bytes that tensors should have and compares them with a file's; implements `hf2q.types.Writer`.

    Nothing is mapped, so memory holds two pieces at a time. `differences` is complete after the last `write`.
    """

    def __init__(self, tensors: Mapping[str, tuple[GgufFile, GgufTensor]]) -> None:
        """tensors: those of the file, by name."""
        self._tensors = tensors
        self._descriptors: dict[str, int] = {}
        self._name = ""
        self._done = 0
        self.differences: dict[str, Difference] = {}

    def write(self, name: str, data: Bytes) -> None:
        """Compare the next bytes of the tensor `name`."""
        if name != self._name:
            self._name, self._done = name, 0
        file, tensor = self._tensors[name]
        expected = np.ascontiguousarray(data).reshape(-1)
        if self._done + expected.nbytes > tensor.nbytes:
            raise FormatError(f"{file.path}: tensor {name!r} is shorter than its shape and type say")
        found = np.empty_like(expected)
        if found.size:
            read_exactly(self._open(file.path), found.data.cast("B"), tensor.offset + self._done, file.path)
        different = np.flatnonzero(found != expected)
        if different.size:
            self._note(name, tensor, self._done + int(different[0]), int(different.size))
        self._done += expected.nbytes

    def close(self) -> None:
        """Close the file."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def abort(self) -> None:
        """The same."""
        self.close()

    def _note(self, name: str, tensor: GgufTensor, offset: int, count: int) -> None:
        first = self.differences.get(name)
        if first is not None:
            self.differences[name] = Difference(
                offset=first.offset, row=first.row, column=first.column, count=first.count + count
            )
            return
        kind = GGML_TYPES[tensor.qtype]
        row, at = divmod(offset, tensor.row_bytes)
        column = at // kind.type_size * kind.block_size
        self.differences[name] = Difference(offset=offset, row=row, column=column, count=count)

    def _open(self, path: str) -> int:
        if path not in self._descriptors:
            self._descriptors[path] = open_regular(path)[0]
        return self._descriptors[path]


def check_tensors(
    plan: Plan, wanted: Mapping[str, str], tensors: Mapping[str, tuple[GgufFile, GgufTensor]]
) -> tuple[dict[str, TensorCheck], tuple[TensorPlan, ...]]:
    """Names, shapes and types of a file against those of the plan, which has the file's own types where they can be.

    wanted   the types that the recipe gives, by name, where they are known
    Returns: a check for each tensor, those of the file first and in its order; and the tensors whose bytes can be
             compared, in the plan's order.
    """
    planned = {tensor.name: tensor for tensor in plan.tensors}
    checks: dict[str, TensorCheck] = {}
    for name, (_, found) in tensors.items():
        expected = planned.get(name)
        if expected is None:
            checks[name] = TensorCheck(name=name, status="extra", qtype=found.qtype, shape=found.shape)
        elif found.shape != expected.shape:
            checks[name] = TensorCheck(
                name=name, status="shape", qtype=found.qtype, shape=found.shape, expected_shape=expected.shape
            )
        else:
            right = wanted.get(name, expected.qtype)
            same = found.qtype == right
            checks[name] = TensorCheck(
                name=name,
                status="ok" if same else "type",
                qtype=found.qtype,
                shape=found.shape,
                expected_qtype=None if same else right,
            )
    for name, expected in planned.items():
        if name not in tensors:
            checks[name] = TensorCheck(name=name, status="missing", qtype=expected.qtype, shape=expected.shape)
    comparable = tuple(
        tensor
        for tensor in plan.tensors
        if checks[tensor.name].status in ("ok", "type") and tensors[tensor.name][1].qtype == tensor.qtype
    )
    return checks, comparable
