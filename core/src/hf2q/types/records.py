"""What everything else is made of: the base of records, GGUF values, and tensors where they come from."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from hf2q.errors import ContractError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32: TypeAlias = NDArray[np.float32]
    Bytes: TypeAlias = NDArray[np.uint8]

Shape: TypeAlias = tuple[int, ...]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all records: immutable, keyword-only."""


def resolve(reference: str) -> Any:
    """Import ``"module:attribute"`` and return the attribute.

    Errors: ContractError when the text has another form or the module lacks the attribute; whatever the import itself
    raises passes through unchanged, because a broken module is not the same as a missing one.
    """
    module, colon, attribute = reference.partition(":")
    if not (module and colon and attribute):
        raise ContractError(f"{reference!r} is not of the form 'module:attribute'")
    found = import_module(module)
    try:
        return getattr(found, attribute)
    except AttributeError:
        raise ContractError(f"module {module!r} has no attribute {attribute!r}") from None


# ---------------------------------------------------------------------------------------------------- GGUF metadata


class ValueType(enum.IntEnum):
    """Types of GGUF metadata values. Source: ggml/docs/gguf.md, `gguf_metadata_value_type`."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


class MetadataField(Record, frozen=True, kw_only=True):
    """One key of a GGUF header. `element` is the type of the elements when `type` is ARRAY, else None."""

    key: str
    type: ValueType
    value: Any
    element: ValueType | None = None

    @classmethod
    def u32(cls, key: str, value: int) -> MetadataField:
        """An unsigned 32-bit integer."""
        return cls(key=key, type=ValueType.UINT32, value=value)

    @classmethod
    def i32(cls, key: str, value: int) -> MetadataField:
        """A signed 32-bit integer."""
        return cls(key=key, type=ValueType.INT32, value=value)

    @classmethod
    def f32(cls, key: str, value: float) -> MetadataField:
        """A float, stored in 32 bits."""
        return cls(key=key, type=ValueType.FLOAT32, value=float(value))

    @classmethod
    def boolean(cls, key: str, value: bool) -> MetadataField:
        """A truth value, stored in one byte."""
        return cls(key=key, type=ValueType.BOOL, value=value)

    @classmethod
    def string(cls, key: str, value: str) -> MetadataField:
        """A UTF-8 string."""
        return cls(key=key, type=ValueType.STRING, value=value)

    @classmethod
    def array(cls, key: str, element: ValueType, values: Sequence[Any]) -> MetadataField:
        """A list whose elements are all of type `element`."""
        return cls(key=key, type=ValueType.ARRAY, value=tuple(values), element=element)


# ------------------------------------------------------------------------------------------------ sources of tensors


class TensorInfo(Record, frozen=True, kw_only=True):
    """One tensor of a checkpoint, as its file's header describes it.

    `dtype` is the safetensors spelling (``BF16``, ``F32``, ``F8_E4M3`` …); `file` is the path of the file relative to
    the checkpoint; `offset` and `nbytes` locate the data in that file, in bytes from its beginning.
    """

    name: str
    shape: Shape
    dtype: str
    file: str
    offset: int
    nbytes: int


class Rows(Protocol):
    """A tensor that is read a few rows at a time; a transform takes some of these and returns one.

    The tensor is seen as a matrix: `shape[-1]` columns, and the product of the leading sizes as rows. `dtype` is the
    dtype of the checkpoint's own values, which decides how they are stored when the target is "as the source has it".
    """

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> str: ...

    def read(self, start: int, stop: int) -> Float32:
        """Rows `start` to `stop` as a new C-contiguous float32 array (stop - start, columns). Thread-safe."""
        ...
