"""The frozen records and Protocols that cross a boundary between rooms, or between core and a plugin.

Records are cheap descriptors: whatever is heavy (numpy, MLX, numba) is named as a ``"module:attribute"`` string and
imported by `resolve` on first use, so that discovering plugins imports none of it.

Words used throughout: *arch* is the text of GGUF's ``general.architecture``; *qtype* the storage type of one tensor
(``Q4_K``); *recipe* the file-level mix (``q4_k_m``); *codec* the object that encodes one qtype. Shapes are in numpy
order, rows first. Names of tensors are GGUF names, except in `TensorInfo`, `TensorRule.hf` and `TensorSpec.inputs`.

::

    records   the base, GGUF metadata, tensors of a checkpoint and their rows
    families  what is known of an arch, and what runs it
    output    recipes, plans, writers; commands

Import from here: which module holds a name is no promise.
"""

from typing import TYPE_CHECKING

from hf2q.types.families import (
    ArchEntry,
    BackendEntry,
    ChatFormat,
    GraphEntry,
    HParams,
    PreTokenizer,
    ProjectorEntry,
    Task,
    TensorCatalog,
    TensorRule,
    TensorSpec,
    Thresholds,
    Transform,
)
from hf2q.types.output import (
    CheckpointView,
    CommandEntry,
    FolderWriter,
    FormatPlan,
    GgufView,
    ModelFacts,
    OutputFormat,
    Plan,
    PolicyOptions,
    Recipe,
    TensorChoiceInput,
    TensorPlan,
    TypeChoice,
    Writer,
    WriterEntry,
)
from hf2q.types.records import (
    MetadataField,
    Record,
    Rows,
    Shape,
    TensorInfo,
    ValueType,
    resolve,
)

if TYPE_CHECKING:
    from hf2q.types.records import Bytes as Bytes
    from hf2q.types.records import Float32 as Float32

__all__ = [
    "ArchEntry",
    "BackendEntry",
    "ChatFormat",
    "CheckpointView",
    "CommandEntry",
    "FolderWriter",
    "FormatPlan",
    "GgufView",
    "GraphEntry",
    "HParams",
    "MetadataField",
    "ModelFacts",
    "OutputFormat",
    "Plan",
    "PolicyOptions",
    "PreTokenizer",
    "ProjectorEntry",
    "Recipe",
    "Record",
    "Rows",
    "Shape",
    "Task",
    "TensorCatalog",
    "TensorChoiceInput",
    "TensorInfo",
    "TensorPlan",
    "TensorRule",
    "TensorSpec",
    "Thresholds",
    "Transform",
    "TypeChoice",
    "ValueType",
    "Writer",
    "WriterEntry",
    "resolve",
]
