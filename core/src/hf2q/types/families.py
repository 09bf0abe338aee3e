"""Families and what runs them: tensor catalogs, architectures, projectors, chat formats, graphs, backends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, get_args

from hf2q.errors import ContractError
from hf2q.types.records import MetadataField, Record, Rows, Shape, TensorInfo

Task: TypeAlias = Literal["generate", "embed"]

Transform: TypeAlias = Callable[[Sequence[Rows], "TensorSpec", "HParams"], Rows]
"""Builds one output tensor lazily from its inputs. Ready-made parts are in `hf2q.rows`."""


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
