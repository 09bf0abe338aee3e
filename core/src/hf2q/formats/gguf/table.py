"""The tensor table of a GGUF header: names, shapes, types and places, all checked. Between `cursor` and `reader`."""

from __future__ import annotations

import math

from hf2q.errors import FormatError
from hf2q.formats.ggml_types import ggml_type, row_bytes
from hf2q.formats.gguf.cursor import Cursor
from hf2q.formats.gguf.layout import MAX_DIMS, MAX_NAME_BYTES, padded
from hf2q.types import Record, Shape

_INT64_MAX = (1 << 63) - 1


class GgufTensor(Record, frozen=True, kw_only=True):
    """One tensor of a file. `shape` is in numpy order; `offset` and `nbytes` locate its data in the file, in bytes."""

    name: str
    shape: Shape
    qtype: str
    offset: int
    nbytes: int

    @property
    def columns(self) -> int:
        """Weights per row."""
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        """Number of rows, over all leading sizes."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return row_bytes(self.qtype, self.columns)

    @property
    def elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)


def read_table(cursor: Cursor, count: int) -> list[GgufTensor]:
    """Read `count` records at the cursor; `offset` in the result still counts from the beginning of the data section.

    Errors: FormatError for what gguf.cpp refuses (name length, doubles, dimensions, sizes that overflow, types, rows
    that are not whole blocks).
    """
    tensors: list[GgufTensor] = []
    seen: set[str] = set()
    for index in range(count):
        start = cursor.position
        name = cursor.string(f"the name of tensor {index}", MAX_NAME_BYTES)
        if not name or "\0" in name:
            raise cursor.error(f"the name of tensor {index} is {name!r}, expected text without zero bytes", at=start)
        if name in seen:
            raise cursor.error(f"tensor {name!r} occurs twice", at=start)
        seen.add(name)
        shape = _read_shape(cursor, name)
        start = cursor.position
        number = cursor.i32(f"the type of tensor {name!r}")
        try:
            kind = ggml_type(number)
            per_row = row_bytes(kind.name, shape[-1] if shape else 1)
        except FormatError as error:
            raise cursor.error(f"tensor {name!r}: {error.message}", at=start, hint=error.hint) from None
        nbytes = math.prod(shape[:-1]) * per_row
        offset = cursor.u64(f"the offset of tensor {name!r}")
        tensors.append(GgufTensor(name=name, shape=shape, qtype=kind.name, offset=offset, nbytes=nbytes))
    return tensors


def _read_shape(cursor: Cursor, name: str) -> Shape:
    start = cursor.position
    n_dims = cursor.u32(f"the number of dimensions of tensor {name!r}")
    if n_dims > MAX_DIMS:
        raise cursor.error(f"tensor {name!r} has {n_dims} dimensions, expected at most {MAX_DIMS}", at=start)
    sizes = [cursor.i64(f"size {axis} of tensor {name!r}") for axis in range(n_dims)]
    if any(size < 0 for size in sizes):
        raise cursor.error(f"tensor {name!r} has the sizes {sizes}, expected none below 0", at=start)
    # A size of 0 must not hide an overflow of the others.
    if math.prod(size for size in sizes if size) > _INT64_MAX:
        raise cursor.error(f"tensor {name!r} has the sizes {sizes}, whose product is beyond 2^63", at=start)
    return tuple(reversed(sizes))


def place(cursor: Cursor, tensors: list[GgufTensor], alignment: int) -> tuple[int, int, dict[str, GgufTensor]]:
    """Check that the tensors lie one after the other in the data section and that the file holds them all.

    gguf.cpp accepts only offsets equal to the padded sum of the sizes before, so no gap and no overlap is possible.
    The padding after the last tensor belongs to the file as well.

    Returns: where the data section begins and ends, and the tensors by name, with offsets from the file's beginning.
    """
    if not tensors:
        return cursor.position, cursor.position, {}
    data = padded(cursor.position, alignment)
    expected = 0
    placed: dict[str, GgufTensor] = {}
    for tensor in tensors:
        if tensor.offset != expected:
            raise FormatError(f"{cursor.path}: tensor {tensor.name!r} {_misplaced(tensor.offset, expected, alignment)}")
        stop = data + expected + tensor.nbytes
        if stop > cursor.size:
            raise FormatError(
                f"{cursor.path}: tensor {tensor.name!r} ends at byte {stop}, but the file has {cursor.size} bytes",
                hint="the file is cut short: download or convert it again",
            )
        placed[tensor.name] = GgufTensor(
            name=tensor.name,
            shape=tensor.shape,
            qtype=tensor.qtype,
            offset=data + expected,
            nbytes=tensor.nbytes,
        )
        expected += padded(tensor.nbytes, alignment)
    if data + expected > cursor.size:
        raise FormatError(
            f"{cursor.path}: the padding after the last tensor ends at byte {data + expected}, "
            f"but the file has {cursor.size} bytes",
            hint="the file is cut short: download or convert it again",
        )
    return data, data + expected, placed


def _misplaced(offset: int, expected: int, alignment: int) -> str:
    if offset % alignment:
        return f"has the offset {offset}, expected {expected}: not a multiple of the alignment {alignment}"
    if offset < expected:
        return f"has the offset {offset}, expected {expected}: it overlaps the tensor before it"
    return f"has the offset {offset}, expected {expected}: there is a gap before it"
