"""Does a file hold the blocks it says it holds? Asked by whoever loads a model, not by the reader itself."""

from __future__ import annotations

import re

from hf2q.errors import LoadError
from hf2q.formats.gguf.model import GgufModel
from hf2q.formats.gguf.reader import GgufFile
from hf2q.types import ValueType

_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]*)\.")
_INTEGERS = frozenset(
    {
        ValueType.UINT8,
        ValueType.INT8,
        ValueType.UINT16,
        ValueType.INT16,
        ValueType.UINT32,
        ValueType.INT32,
        ValueType.UINT64,
        ValueType.INT64,
    }
)


def check_blocks(file: GgufModel | GgufFile) -> int:
    """Check that ``ARCH.block_count`` and the blocks of the tensor table agree, and return the count.

    Errors: LoadError when the key is absent or no count, when a block below it has no tensor, or when a tensor
    belongs to a block at or above it.
    """
    key = f"{file.arch}.block_count"
    if key not in file.metadata:
        raise LoadError(f"{file.path}: there is no key {key!r}, expected the number of blocks")
    kind = file.metadata.type_of(key)
    if kind not in _INTEGERS:
        raise LoadError(f"{file.path}: {key} is of type {kind.name}, expected a number of blocks")
    count = int(file.metadata[key])
    if count < 0:
        raise LoadError(f"{file.path}: {key} is {count}, expected a number of blocks")
    present = {int(found[1]) for name in file.tensors if (found := _BLOCK.match(name))}
    if present and max(present) >= count:
        raise LoadError(f"{file.path}: {key} is {count}, but there are tensors of block {max(present)}")
    if len(present) < count:
        # Numbers up to len(present) suffice to find the first gap, whatever the count claims.
        missing = next(index for index in range(len(present) + 1) if index not in present)
        raise LoadError(
            f"{file.path}: {key} is {count}, but block {missing} has no tensors ({len(present)} blocks have)"
        )
    return count
