"""The plan of an output file, from headers alone: no weight is read here.

Which files it equals: without quantization what llama.cpp's convert_hf_to_gguf.py writes, with it what llama-quantize
makes of that (tensors in its order, ``general.quantization_version`` and ``general.file_type`` moved to the end;
src/llama-quant.cpp, `llama_model_quantize_impl`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hf2q.catalog import Claim, claim
from hf2q.convert.metadata import general_metadata
from hf2q.convert.source import Source
from hf2q.convert.tensors import (
    INTERMEDIATES,
    automatic,
    build_rows,
    in_converter_order,
    kept_because,
    quantize_order,
    squeezed,
)
from hf2q.errors import ContractError, UnknownNameError, UsageError
from hf2q.formats.gguf.layout import DEFAULT_ALIGNMENT, padded
from hf2q.formats.tokenizer import read_tokenizer
from hf2q.plugins import Plugins
from hf2q.types import (
    HParams,
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
    resolve,
)

QUANTIZATION_VERSION = MetadataField.u32("general.quantization_version", 2)
"""ggml/include/ggml.h, GGML_QNT_VERSION."""


class Planned(Record, frozen=True, kw_only=True):
    """A plan and how to get at the weights: `rows(name)` of an output tensor, made anew on each call."""

    plan: Plan
    rows: Callable[[str], Rows]


def make_plan(
    source: Source, recipe: Recipe, plugins: Plugins, *, via: str = "auto", mtp: bool = True, pre: str | None = None
) -> Planned:
    """Decide everything about the output file.

    Errors: UnknownNameError for a family or codec that no plugin provides; UsageError for a `via` that cannot be;
    ConfigError and TensorMismatchError for a checkpoint that is not understood.
    """
    entry = plugins.arch_for(source.hf_architecture)
    hparams: HParams = resolve(entry.hparams).from_config(source.config, source.checkpoint.tensors.values(), mtp=mtp)
    catalog = plugins.catalog(entry.catalog)
    claims = claim(catalog, catalog.expand(hparams), source.checkpoint.tensors.values(), mtp=mtp)
    left_out = {name for name, _ in claims.ignored}
    used = [tensor for name, tensor in source.checkpoint.tensors.items() if name not in left_out]
    ordered = in_converter_order(claims.claimed, source.checkpoint.tensors)
    for one in ordered:
        build_rows(one, source.checkpoint, hparams)  # here, so that a wrong shape is found before anything is written
    intermediate = _intermediate(recipe, via, automatic(used))
    own = hparams.metadata()
    described = general_metadata(source.directory, source.config, [(c.spec.name, c.spec.shape) for c in ordered])
    n_vocab = hparams.symbols["n_vocab"]
    tokenizer = read_tokenizer(source.directory, n_vocab, source.config, entry.pre_tokenizers, pre)
    if recipe.quantizes:
        ordered.sort(key=lambda c: quantize_order(c.spec.name))
    tensors = _tensors(ordered, recipe, intermediate, _facts(entry.arch, own), plugins)
    plan = Plan(
        arch=entry.arch,
        recipe=recipe.name,
        via=intermediate,
        metadata=_metadata(entry.arch, recipe, described, own, tokenizer),
        tensors=tensors,
        ignored=claims.ignored,
    )
    by_name = {c.spec.name: c for c in ordered}
    return Planned(plan=plan, rows=lambda name: build_rows(by_name[name], source.checkpoint, hparams))


def _intermediate(recipe: Recipe, via: str, auto: str) -> str:
    if via != "auto" and via not in INTERMEDIATES:
        raise UsageError(f"--via {via} is unknown, expected auto or one of {', '.join(INTERMEDIATES)}")
    if recipe.quantizes:
        return auto if via == "auto" else via
    if via not in ("auto", recipe.name):
        raise UsageError(
            f"--quant {recipe.name} is written directly; --via {via} contradicts it",
            hint=f"leave --via out, or use --quant {via}",
        )
    return recipe.name


def _facts(arch: str, own: Sequence[MetadataField]) -> ModelFacts:
    values = {field.key: field.value for field in own}

    def size(key: str) -> int:
        value = values.get(f"{arch}.{key}", 0)
        return int(value[0] if isinstance(value, tuple) else value)  # by layer: the first, as llama-quantize does

    return ModelFacts(
        arch=arch,
        n_layer=size("block_count"),
        n_head=size("attention.head_count"),
        n_head_kv=size("attention.head_count_kv"),
        n_expert=size("expert_count"),
    )


def _tensors(
    ordered: Sequence[Claim], recipe: Recipe, intermediate: str, facts: ModelFacts, plugins: Plugins
) -> tuple[TensorPlan, ...]:
    kept = [kept_because(one) for one in ordered]
    inputs = [
        TensorChoiceInput(
            name=one.spec.name,
            shape=squeezed(one.spec.shape) if recipe.quantizes else one.spec.shape,
            qtype="F32" if reason else intermediate.upper(),
        )
        for one, reason in zip(ordered, kept, strict=True)
    ]
    plans = []
    offset = 0
    for one, tensor, choice, reason in zip(ordered, inputs, recipe.choose(inputs, facts), kept, strict=True):
        nbytes = _nbytes(tensor.name, tensor.shape, choice, recipe, plugins)
        plans.append(
            TensorPlan(
                name=tensor.name,
                shape=tensor.shape,
                qtype=choice.qtype,
                via=tensor.qtype,
                reason=reason if reason and choice.qtype == "F32" else choice.reason,
                nbytes=nbytes,
                offset=offset,
                inputs=one.inputs,
                transform=one.spec.rule.transform,
                fallback_from=choice.fallback_from,
            )
        )
        offset += padded(nbytes, DEFAULT_ALIGNMENT)
    return tuple(plans)


def _nbytes(name: str, shape: Shape, choice: TypeChoice, recipe: Recipe, plugins: Plugins) -> int:
    try:
        codec = plugins.codec(choice.qtype)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"recipe {recipe.name} gives {name} the type {choice.qtype} ({choice.reason}); {error.message}",
            hint=error.hint,
        ) from error
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows * codec.row_bytes(shape[-1])


def _metadata(
    arch: str,
    recipe: Recipe,
    described: Sequence[MetadataField],
    own: Sequence[MetadataField],
    tokenizer: Sequence[MetadataField],
) -> tuple[MetadataField, ...]:
    file_type = MetadataField.u32("general.file_type", recipe.ftype)
    fields = [
        MetadataField.string("general.architecture", arch),
        MetadataField.string("general.type", "model"),
        *described,
        *(file_type if field.key == file_type.key else field for field in own),
        QUANTIZATION_VERSION,
        *tokenizer,
    ]
    if recipe.quantizes:
        last = (QUANTIZATION_VERSION, file_type)
        moved = {field.key for field in last}
        fields = [*(field for field in fields if field.key not in moved), *last]
    keys = {field.key for field in fields}
    if len(keys) != len(fields) or file_type.key not in keys:
        raise ContractError(f"the hparams of {arch} write a key twice, or leave out {file_type.key}")
    return tuple(fields)
