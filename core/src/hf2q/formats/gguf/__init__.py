"""GGUF files: read them without trust, write them from a plan, describe them. Sits on `hf2q.formats.ggml_types`.

reader   open_gguf, GgufFile      metadata, strings, table, cursor   its parts
writer   GgufWriter               encode                    its pure half
blocks   check_blocks             layout                    numbers, limits, offsets
shards   open_shards, ShardedWriter                         models in several files
model    open_model, GgufModel                              one collection of tensors, whatever its files
patch    patched_fields, write_patched                      other metadata before the same tensors
describe describe

No numpy is imported before tensor data is asked for, and nothing that only writing needs before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hf2q.formats.gguf.blocks import check_blocks
from hf2q.formats.gguf.describe import describe
from hf2q.formats.gguf.layout import plan_offsets
from hf2q.formats.gguf.metadata import Metadata
from hf2q.formats.gguf.model import GgufModel, open_model
from hf2q.formats.gguf.reader import GgufFile, open_gguf
from hf2q.formats.gguf.table import GgufTensor

if TYPE_CHECKING:
    from hf2q.formats.gguf.encode import encode_header
    from hf2q.formats.gguf.writer import GgufWriter

__all__ = [
    "GgufFile",
    "GgufModel",
    "GgufTensor",
    "GgufWriter",
    "Metadata",
    "check_blocks",
    "describe",
    "encode_header",
    "open_gguf",
    "open_model",
    "plan_offsets",
]

_LATER = {"GgufWriter": "writer", "encode_header": "encode"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
