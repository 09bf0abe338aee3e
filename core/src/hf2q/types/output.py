"""What comes out and how: recipes, plans, writers and output formats; and commands that plugins add."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, cast

from hf2q.errors import ContractError
from hf2q.types.families import HParams, TensorSpec
from hf2q.types.records import MetadataField, Record, Rows, Shape, TensorInfo, resolve

if TYPE_CHECKING:
    from hf2q.codec import QuantCodec
    from hf2q.types.records import Bytes


class TensorChoiceInput(Record, frozen=True, kw_only=True):
    """What a recipe sees of one tensor: GGUF name, shape, and the type it has before quantization."""

    name: str
    shape: Shape
    qtype: str


class ModelFacts(Record, frozen=True, kw_only=True):
    """What a recipe may ask about the model; 0 where its file does not say. Of what differs by layer, the first.

    n_layer counts all blocks, MTP included (`n_mtp`); n_ff is the width of dense FFNs, n_ff_expert that of one expert.
    """

    arch: str
    n_layer: int
    n_head: int = 0
    n_head_kv: int = 0
    n_expert: int = 0
    n_embd: int = 0
    n_ff: int = 0
    n_ff_expert: int = 0
    n_mtp: int = 0


class PolicyOptions(Record, frozen=True, kw_only=True):
    """What a user asks of a recipe besides its name; by default nothing. Types are spelled as in ggml (``Q4_K``).

    pure                  every tensor that is quantized gets the recipe's default type
    output_tensor_type    type of output.weight, and of token embeddings that stand in for it
    token_embedding_type  type of the token embeddings
    tensor_types          (pattern, type): a tensor whose name matches gets the type, by the first pattern that does.
                          Regular expressions, folded to lower case and searched for anywhere in the name
    leave_output_tensor   output.weight keeps the type it has
    has_imatrix           importance is known, for at least one tensor

    In which order they count: `hf2q.policy.walk`.
    """

    pure: bool = False
    output_tensor_type: str | None = None
    token_embedding_type: str | None = None
    tensor_types: tuple[tuple[str, str], ...] = ()
    leave_output_tensor: bool = False
    has_imatrix: bool = False


class TypeChoice(Record, frozen=True, kw_only=True):
    """The type chosen for one tensor, by which rule, and from what it fell back because of its shape.

    `needs_importance`: encoded without knowing the importance of its columns, the tensor would be ruined.
    """

    qtype: str
    reason: str
    fallback_from: str | None = None
    needs_importance: bool = False


class Recipe(Record, frozen=True, kw_only=True):
    """A file-level type policy.

    name      what ``--quant`` takes (``q4_k_m``)
    ftype     value of ``general.file_type``
    default   qtype that most tensors get
    policy    ``"module:function"``: (recipe, tensors in file order, facts, options) -> a `TypeChoice` for each, in
              order. What all policies share is in `hf2q.policy`; an option it cannot honour it refuses (UsageError)
    quantizes whether the output is what llama-quantize writes (its tensor order, its keys at the end) or what the
              converter writes
    aliases   other spellings of the name
    """

    name: str
    ftype: int
    default: str
    policy: str
    quantizes: bool
    aliases: tuple[str, ...] = ()

    def choose(
        self, tensors: Sequence[TensorChoiceInput], facts: ModelFacts, options: PolicyOptions | None = None
    ) -> tuple[TypeChoice, ...]:
        """Run the policy over all tensors of a file."""
        policy = cast("Callable[..., Iterable[TypeChoice]]", resolve(self.policy))
        choices = tuple(policy(self, tensors, facts, options or PolicyOptions()))
        if len(choices) != len(tensors):
            raise ContractError(f"recipe {self.name!r} chose {len(choices)} types for {len(tensors)} tensors")
        return choices


class TensorPlan(Record, frozen=True, kw_only=True):
    """One tensor of the output file.

    `via` is the type of the intermediate that llama.cpp's pipeline would have written, through which values pass
    before they are encoded, or that of the source when it is a GGUF file; `offset` counts bytes from the beginning of
    the data section. `importance`: encoded by the importance of its columns; `copied`: the bytes are the source's.
    """

    name: str
    shape: Shape
    qtype: str
    via: str
    reason: str
    nbytes: int
    offset: int
    inputs: tuple[str, ...]
    transform: str = ""
    fallback_from: str | None = None
    importance: bool = False
    copied: bool = False

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return prod(self.shape)


class Plan(Record, frozen=True, kw_only=True):
    """Everything about an output file except the weights: computed from headers alone.

    `via` is the intermediate type of the file, "" when the source is a GGUF file, which needs none.
    """

    arch: str
    recipe: str
    via: str
    metadata: tuple[MetadataField, ...]
    tensors: tuple[TensorPlan, ...]
    ignored: tuple[tuple[str, str], ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data, without padding and header."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(tensor.parameters for tensor in self.tensors)


class Writer(Protocol):
    """An output file in the making; the type behind `WriterEntry.writer`.

    Call order: construct, then `write` for each tensor of the plan in order (in as many pieces as wanted), then
    `close`. The file carries its final name only after `close` has returned; `abort` removes what was written.
    """

    def __init__(self, path: str, plan: Plan) -> None: ...

    def write(self, name: str, data: Bytes) -> None:
        """Append encoded bytes of the tensor `name`. Errors: WriteError for a wrong order or a wrong total."""
        ...

    def close(self) -> None:
        """Check that all was written, flush to disk, and give the file its final name."""
        ...

    def abort(self) -> None:
        """Remove the unfinished file. Safe at any time, also after `close`."""
        ...


class WriterEntry(Record, frozen=True, kw_only=True):
    """An output format. `writer` is ``"module:Class"`` of type `Writer`; `suffix` the usual file name ending.

    `layout` is ``"module:Class"`` of type `OutputFormat` for a format with tensors of its own, which is a folder and
    whose writer is a `FolderWriter`; "" for one that holds the tensors of GGUF in one file.
    """

    name: str
    suffix: str
    writer: str
    layout: str = ""


class CheckpointView(Record, frozen=True, kw_only=True):
    """What an output format sees of a checkpoint whose every tensor has been recognised by its family.

    arch      of the family;  config  the parsed ``config.json``
    tensors   by name in the order of the checkpoint, without those that no text model has
    left_out  names of the others, and why
    rows      of a tensor;  text  of a file beside the weights by its name, None when there is none
    """

    arch: str
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    left_out: tuple[tuple[str, str], ...]
    rows: Callable[[str], Rows]
    text: Callable[[str], str | None]


class GgufView(Record, frozen=True, kw_only=True):
    """What an output format sees of a GGUF file whose every tensor is one that its family expects.

    arch, hparams  of the model
    config    the parsed ``config.json`` beside the file, which says the same as its metadata
    tensors   in file order: what the family says of each, and the type that it is stored as
    rows      of a tensor by its GGUF name, seen with the shape of its `TensorSpec`
    stored    the same rows as they are in the file: (name, start, stop) -> uint8 (stop - start, bytes)
    codec     of a type, None where no plugin has one
    text      of a file beside the GGUF file by its name, None when there is none
    """

    arch: str
    hparams: HParams
    config: Mapping[str, Any]
    tensors: tuple[tuple[TensorSpec, str], ...]
    rows: Callable[[str], Rows]
    stored: Callable[[str, int, int], Bytes]
    codec: Callable[[str], QuantCodec | None]
    text: Callable[[str], str | None]


class FormatPlan(Record, frozen=True, kw_only=True):
    """The plan of a folder, the rows of its tensors by name, and their codecs by type.

    In `plan.metadata` are the text files of the folder, each a string by the name of the file.
    """

    plan: Plan
    rows: Callable[[str], Rows]
    codec: Callable[[str], QuantCodec]


class OutputFormat(Protocol):
    """A format with tensors of its own; the type behind `WriterEntry.layout`, made without arguments."""

    def recipe(self, name: str) -> Recipe:
        """What ``--quant NAME`` means in this format. Errors: UnknownNameError saying which names there are."""
        ...

    def plan(self, source: CheckpointView, recipe: Recipe) -> FormatPlan:
        """Everything but the weights, from headers alone."""
        ...

    def plan_gguf(self, source: GgufView, recipe: Recipe) -> FormatPlan:
        """The same for a GGUF file. Errors: UsageError naming a tensor that cannot be taken back."""
        ...


class FolderWriter(Writer, Protocol):
    """The writer of a folder: `path` is the folder, which has its name only after `close`."""

    @staticmethod
    def file_names(plan: Plan) -> tuple[str, ...]:
        """Every file that will be in the folder, weights first."""
        ...


class CommandEntry(Record, frozen=True, kw_only=True):
    """An extra command: `hf2q NAME` calls ``"module:function"``; `help` is its line in the command list."""

    name: str
    command: str
    help: str
