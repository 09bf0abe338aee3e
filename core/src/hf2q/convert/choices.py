"""From chosen types to planned tensors: sizes, offsets, and what is encoded with importance.

The same for checkpoints (`plan`) and for GGUF files (`requantize`), which both come here last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from hf2q.convert.importance import UNWEIGHTED, Importance
from hf2q.errors import FormatError, UnknownNameError, UsageError
from hf2q.formats.ggml_types import row_bytes
from hf2q.formats.gguf.layout import padded
from hf2q.plugins import Plugins
from hf2q.types import (
    MetadataField,
    ModelFacts,
    Plan,
    Recipe,
    Record,
    Rows,
    Shape,
    TensorChoiceInput,
    TensorPlan,
    TypeChoice,
)

log = logging.getLogger(__name__)

QUANTIZATION_VERSION = MetadataField.u32("general.quantization_version", 2)
"""ggml/include/ggml.h, GGML_QNT_VERSION."""


Retype = Callable[[Sequence[TensorChoiceInput], Sequence[TypeChoice]], Sequence[TypeChoice]]
"""Replaces the types that a recipe chose: `verify` puts those of the file in their place."""


class Planned(Record, frozen=True, kw_only=True):
    """A plan and how to get at the weights.

    rows        of an output tensor, made anew on each call
    importance  float32 (matrices, columns) of an output tensor whose plan says that it is encoded with it
    held        most bytes that reading rows holds for each thread besides them
    """

    plan: Plan
    rows: Callable[[str], Rows]
    importance: Importance | None = None
    held: int = 0


class Wanted(Record, frozen=True, kw_only=True):
    """One output tensor before its type is chosen.

    `qtype` is the type that it has by then; `stored` says that its bytes are at hand in it; `packed` a type that the
    source has the same values in, so that its bytes are at hand in that one too, "" where there is none; `kept` why a
    converter stores it as `qtype` whatever is asked for, "" when it does not.
    """

    name: str
    shape: Shape
    qtype: str
    inputs: tuple[str, ...]
    transform: str = ""
    stored: bool = False
    packed: str = ""
    kept: str = ""

    def at_hand(self, qtype: str) -> bool:
        """Whether the source has its bytes in the type."""
        return (self.stored and qtype == self.qtype) or qtype == self.packed

    @property
    def choice_input(self) -> TensorChoiceInput:
        """What a recipe sees of it."""
        return TensorChoiceInput(name=self.name, shape=self.shape, qtype=self.qtype)


def model_facts(arch: str, value_of: Callable[[str], Any]) -> ModelFacts:
    """What recipes may ask, by the model's own keys; `value_of` gives the value of one, or None.

    Errors: FormatError for a value that is no number.
    """

    def size(key: str) -> int:
        value = value_of(f"{arch}.{key}")
        if isinstance(value, tuple) and value:
            value = value[0]  # by layer: the first, as llama-quantize does
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int):
            raise FormatError(f"{arch}.{key} is {value!r}, expected a number")
        return value

    return ModelFacts(
        arch=arch,
        n_layer=size("block_count"),
        n_head=size("attention.head_count"),
        n_head_kv=size("attention.head_count_kv"),
        n_expert=size("expert_count"),
        n_embd=size("embedding_length"),
        n_ff=size("feed_forward_length"),
        n_ff_expert=size("expert_feed_forward_length"),
        n_mtp=size("nextn_predict_layers"),
    )


def plan_tensors(
    wanted: Sequence[Wanted],
    choices: Sequence[TypeChoice],
    recipe: Recipe,
    plugins: Plugins,
    *,
    importance: Importance | None,
    alignment: int,
) -> tuple[TensorPlan, ...]:
    """Tensors in file order with their types, sizes and offsets.

    Errors: UnknownNameError for a type that no plugin encodes; UsageError and TensorMismatchError for an importance
    matrix that does not cover what needs it, or that belongs to another model.
    """
    plans = []
    offset = 0
    known = 0
    for tensor, choice in zip(wanted, choices, strict=True):
        same = choice.qtype == tensor.qtype
        nbytes = _nbytes(tensor, choice, recipe, plugins)
        weighted = importance is not None and not same and importance.known(tensor.name, tensor.shape, choice)
        known += weighted
        plans.append(
            TensorPlan(
                name=tensor.name,
                shape=tensor.shape,
                qtype=choice.qtype,
                via=tensor.qtype,
                reason=tensor.kept if tensor.kept and same else choice.reason,
                nbytes=nbytes,
                offset=offset,
                inputs=tensor.inputs,
                transform=tensor.transform,
                fallback_from=choice.fallback_from,
                importance=weighted and choice.qtype not in UNWEIGHTED,
                copied=tensor.at_hand(choice.qtype),
            )
        )
        offset += padded(nbytes, alignment)
    if importance is not None:
        _check_use(plans, known, importance)
    return tuple(plans)


def _check_use(plans: Sequence[TensorPlan], known: int, importance: Importance) -> None:
    if not known:
        raise UsageError(
            f"{importance.path} knows none of the tensors that are encoded",
            hint="the importance matrix was computed with another model; `hf2q imatrix show FILE` lists its entries",
        )
    importance.check_names({plan.name for plan in plans})
    if not any(plan.importance for plan in plans):
        log.warning("no tensor gets a type that importance makes a difference to, so the matrix changes no weight")


def _nbytes(tensor: Wanted, choice: TypeChoice, recipe: Recipe, plugins: Plugins) -> int:
    rows, columns = prod(tensor.shape[:-1]), tensor.shape[-1]
    if tensor.at_hand(choice.qtype):
        return rows * row_bytes(choice.qtype, columns)
    try:
        codec = plugins.codec(choice.qtype)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"recipe {recipe.name} gives {tensor.name} the type {choice.qtype} ({choice.reason}); {error.message}",
            hint=error.hint,
        ) from error
    return rows * codec.row_bytes(columns)


def with_last_keys(
    fields: Sequence[MetadataField], recipe: Recipe, importance: Importance | None
) -> tuple[MetadataField, ...]:
    """The keys of a file that llama-quantize wrote: those it sets itself are moved to the end.

    Source: src/llama-quant.cpp, `llama_model_quantize_impl`; tools/quantize/quantize.cpp, `llama_quantize`.
    """
    last = [QUANTIZATION_VERSION, MetadataField.u32("general.file_type", recipe.ftype)]
    if importance is not None:
        last += importance.fields()
    moved = {field.key for field in last}
    return (*(field for field in fields if field.key not in moved), *last)
