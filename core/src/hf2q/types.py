"""The frozen records and Protocols that cross a boundary between rooms, or between core and a plugin.

Records are cheap descriptors: whatever is heavy (numpy, MLX, numba) is named as a ``"module:attribute"`` string and
imported by `resolve` on first use, so that discovering plugins imports none of it.

Words used throughout: *arch* is the text of GGUF's ``general.architecture``; *qtype* the storage type of one tensor
(``Q4_K``); *recipe* the file-level mix (``q4_k_m``); *codec* the object that encodes one qtype. Shapes are in numpy
order, rows first. Names of tensors are GGUF names, except in `TensorInfo`, `TensorRule.hf` and `TensorSpec.inputs`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast, get_args

import msgspec

from hf2q.errors import ContractError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hf2q.codec import QuantCodec

    Float32: TypeAlias = NDArray[np.float32]
    Bytes: TypeAlias = NDArray[np.uint8]

Shape: TypeAlias = tuple[int, ...]
Task: TypeAlias = Literal["generate", "embed"]


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


Transform: TypeAlias = Callable[[Sequence[Rows], "TensorSpec", "HParams"], Rows]
"""Builds one output tensor lazily from its inputs. Ready-made parts are in `hf2q.rows`."""


# ------------------------------------------------------------------------------------------------- families (archs)


class HParams(Protocol):
    """What a family knows about one model; the type behind `ArchEntry.hparams`.

    Built from ``config.json`` when converting, from GGUF metadata when loading. A config key that is neither read nor
    known to be harmless raises ConfigError.
    """

    @classmethod
    def from_config(cls, config: Mapping[str, Any], tensors: Iterable[TensorInfo], *, mtp: bool) -> HParams:
        """From the parsed ``config.json`` and the checkpoint's tensor list; `mtp` False leaves MTP blocks out."""
        ...

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> HParams:
        """From GGUF metadata. Errors: LoadError naming the key that is missing or contradictory."""
        ...

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """Kind of every block, MTP blocks included, in the words that the family's catalog uses.

        Kinds of MTP blocks, and no others, begin with ``mtp``: their weights are only loaded when asked for.
        """
        ...

    @property
    def symbols(self) -> Mapping[str, int]:
        """Sizes by the symbols that the catalog's shapes use (``n_embd``, ``n_vocab`` …)."""
        ...

    def metadata(self) -> tuple[MetadataField, ...]:
        """The arch's own GGUF keys, in the order llama.cpp's converter first writes them.

        Contains ``general.file_type`` as a u32 0 where the converter writes it: the planner fills in the value.
        """
        ...


class TensorRule(Record, frozen=True, kw_only=True):
    """One line of a catalog: which checkpoint tensors become one GGUF tensor, and how.

    name      GGUF name; ``{i}`` stands for the block index
    hf        checkpoint names, in order of preference; the first alternative whose tensors are all present is taken.
              ``{i}`` is the block index, ``{j}`` the index among blocks of MTP, ``{e}`` an expert: a name that holds
              ``{e}`` stands for the `n_expert` tensors in order. Alternatives with several distinct inputs join them
              by ``+``. Empty when the tensor is no checkpoint's: the transform makes it from the hparams alone
    shape     the GGUF tensor's shape in symbols or numbers, numpy order
    layers    layer kinds this rule belongs to; empty for tensors outside blocks
    needs     a symbol that must not be 0 in a model for the rule to count (``n_expert``), or ""
    transform ``"module:function"`` of type `Transform`, or "" when the one input is copied
    stored_as the type it is stored as whatever the recipe says (``F32``, ``I32``); "" to let the recipe choose
    optional  may be absent from a checkpoint
    unstated  symbols of `shape` whose sizes GGUF metadata do not state: a file may have any size there
    early     0 for the place that the checkpoint's own order gives; tensors with 1, then those with 2 and so on, are
              written before all others, in the order of blocks and of the catalog
    source    where the mapping was read: project, file, function
    """

    name: str
    hf: tuple[str, ...]
    shape: tuple[str | int, ...]
    layers: tuple[str, ...] = ()
    needs: str = ""
    transform: str = ""
    stored_as: str = ""
    optional: bool = False
    unstated: tuple[str, ...] = ()
    early: int = 0
    source: str = ""


class TensorSpec(Record, frozen=True, kw_only=True):
    """One expected GGUF tensor of one model: a rule, expanded.

    `inputs` are the alternatives in order of preference, each the checkpoint names that it needs.
    """

    name: str
    shape: Shape
    inputs: tuple[tuple[str, ...], ...]
    rule: TensorRule
    block: int | None = None

    @property
    def optional(self) -> bool:
        """Whether the checkpoint may lack it."""
        return self.rule.optional


class TensorCatalog(Record, frozen=True, kw_only=True):
    """All tensors of a family.

    name      the arch it belongs to
    rules     see `TensorRule`
    ignore    regular expressions (matched at the start, after `strip`) for checkpoint tensors that are left out on
              purpose, each with its reason
    strip     prefixes or infixes dropped from checkpoint names before matching, e.g. ``language_model.``
    mtp       regular expression (likewise) for the tensors of MTP blocks, which ``--no-mtp`` leaves out; "" for none
    auto      ``"module:function"``: (`TensorSpec`, dtype of its source) -> the type that llama.cpp's converter gives a
              matrix with ``--outtype auto``, "" for the checkpoint's 16-bit type; "" for families that always get that.
              Dtypes are those of `TensorInfo`; weights with scales are ``F8_E4M3`` and ``F4_E2M1``
    """

    name: str
    rules: tuple[TensorRule, ...]
    ignore: tuple[tuple[str, str], ...] = ()
    strip: tuple[str, ...] = ()
    mtp: str = ""
    auto: str = ""

    def expand(self, hparams: HParams) -> tuple[TensorSpec, ...]:
        """Every tensor of a model with these hparams: blocks in order, then rules in catalog order.

        The only expansion there is: counting, checking, planning and documentation all use it.
        """
        from hf2q.catalog import expand

        return expand(self, hparams)


class PreTokenizer(Record, frozen=True, kw_only=True):
    """A pre-tokenizer that GGUF names in ``tokenizer.ggml.pre``, and the structure by which it is recognised.

    name        GGUF's name (``qwen35``); for ``gemma4``, whose files have no such key, only what ``--pre`` takes
    model       ``tokenizer.ggml.model``: ``gpt2`` for byte-level BPE, ``gemma4`` for BPE over plain text with byte
                fallback, ``bert`` for WordPiece
    split       the regular expressions of the Split steps, in the `tokenizers` library's dialect, in order
    digits      whether a Digits step splits single digits
    normalizer  type of the normalizer: ``NFC``, ``Replace`` (a space becomes U+2581), ``BertNormalizer`` (whatever its
                ``lowercase`` and ``strip_accents``, which are keys of their own), or "" for none
    ignore_merges, add_prefix_space   as in ``tokenizer.json``
    n_tokens    number of entries of ``model.vocab``, where that is what tells it from others; 0 for any
    source      where the equivalence was read
    """

    name: str
    model: str = "gpt2"
    split: tuple[str, ...] = ()
    digits: bool = False
    normalizer: str = ""
    ignore_merges: bool = False
    add_prefix_space: bool = False
    n_tokens: int = 0
    source: str = ""


class Thresholds(Record, frozen=True, kw_only=True):
    """Quality bounds of a family: perplexity ratio by kind of mix, median KL in nats."""

    ppl_ratio_4_6: float
    ppl_ratio_4_8: float
    median_kl: float


class ArchEntry(Record, frozen=True, kw_only=True):
    """One family member: everything core needs to know about a GGUF architecture.

    hparams        ``"module:Class"`` of type `HParams`
    catalog        name of its `TensorCatalog`
    chat_format    name of a `ChatFormat`, or ""
    projector      name of the `ProjectorEntry` that turns the checkpoint's vision tower into a file of its own, or ""
    side_files     names of files beside config.json that `HParams.from_config` gets as well, see
                   `hf2q.convert.sidefiles`
    first_keys     GGUF keys that the converter writes right after ``general.architecture``, wherever they come from

    Facts for smoke runs and quality gates:

    smoke_prompts  what `hf2q smoke` lets a model continue, and what a new manifest of `hf2q parity` begins with
    thresholds     what `hf2q quality` judges by
    hf_repos       published checkpoints, that for smoke runs first
    disk_floor_gb  free disk that converting a published checkpoint needs, in GB
    has_mtp, has_vision   what published checkpoints of the family contain; nothing reads it yet
    """

    arch: str
    hf_architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    hparams: str
    catalog: str
    pre_tokenizers: tuple[PreTokenizer, ...] = ()
    chat_format: str = ""
    projector: str = ""
    side_files: tuple[str, ...] = ()
    first_keys: tuple[str, ...] = ()
    has_mtp: bool = False
    has_vision: bool = False
    smoke_prompts: tuple[str, ...] = ()
    thresholds: Thresholds | None = None
    disk_floor_gb: int = 0
    hf_repos: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The key under which the registry holds it."""
        return self.arch


class ProjectorEntry(Record, frozen=True, kw_only=True):
    """A multimodal projector: a vision tower that GGUF keeps in a second file (``mmproj-*.gguf``, arch ``clip``).

    name     GGUF's ``clip.projector_type`` (``qwen3vl_merger``); several families may share one
    hparams  ``"module:Class"`` of type `HParams`, made from the same whole ``config.json`` as the text model's; its
             `metadata` are the ``clip.*`` keys
    catalog  name of its `TensorCatalog`, which claims the tower's tensors and ignores the text model's
    graph    ``"module:Class"`` of type `hf2q.backends.graph.VisionGraph`, "" for a tower that cannot be run yet
    image    text of the special token that stands for an image in a prompt; each of an image's tokens gets its id
    marks    texts of the tokens that go before and after each image where chat templates do not write them; () for none
    """

    name: str
    hparams: str
    catalog: str
    graph: str = ""
    image: str = ""
    marks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.marks) not in (0, 2):
            raise ContractError(
                f"the projector {self.name} has {len(self.marks)} marks, expected one before and one "
                "after an image, or none"
            )


class ChatFormat(Record, frozen=True, kw_only=True):
    """How a family marks reasoning in its text, and which tokens end a turn.

    `reasoning` is the pair of markers around reasoning, or None. `end_of_turn` are token texts that end generation
    besides the file's own EOS. `tools` is ``"module:Class"`` of type `hf2q.serve.chat.syntax.ToolSyntax`, how calls of
    tools are written, or "" where the family has none.
    """

    name: str
    reasoning: tuple[str, str] | None = None
    end_of_turn: tuple[str, ...] = ()
    tools: str = ""


class GraphEntry(Record, frozen=True, kw_only=True):
    """The forward graph of an arch.

    graph   ``"module:Class"``
    task    what it is for, and with that the type of `graph`: ``generate`` for `hf2q.backends.graph.ForwardGraph`,
            which continues texts, ``embed`` for `hf2q.backends.graph.EncoderGraph`, which turns them into vectors
    caches  the kinds of cache it keeps (``kv``, ``state``) for schedulers that must know before loading; nothing reads
            it yet
    images  whether it takes images among its tokens, as `hf2q.backends.graph.SeeingGraph` does
    draft   ``"module:Class"`` of type `hf2q.backends.graph.DraftHead`, which guesses tokens ahead for speculation, or
            "" when the family has none
    cache_bytes  ``"module:function"``: (hparams, tokens) -> bytes that the caches of a sequence of so many tokens take,
            by which loading knows whether a model fits into memory; "" when that is not known
    """

    arch: str
    graph: str
    task: Task = "generate"
    caches: tuple[str, ...] = ()
    images: bool = False
    draft: str = ""
    cache_bytes: str = ""

    def __post_init__(self) -> None:
        if self.task not in get_args(Task):
            raise ContractError(f"the graph of {self.arch} has the task {self.task!r}, expected generate or embed")

    @property
    def name(self) -> str:
        """The key under which the registry holds it."""
        return self.arch


class BackendEntry(Record, frozen=True, kw_only=True):
    """A compute backend.

    backend    ``"module:Class"`` implementing `hf2q.backends.ops.Ops`
    available  ``"module:function"`` returning None when it can run here, else the reason why not
    priority   ``"module:function"`` returning an int: `auto` takes the available backend with the highest
    requires   what to install when its import fails
    """

    name: str
    backend: str
    available: str
    priority: str
    requires: str = ""


# -------------------------------------------------------------------------------------------------- recipes and plans


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
