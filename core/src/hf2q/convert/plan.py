"""The plan of an output file, from headers alone: no weight is read here.

Which files it equals: without quantization what llama.cpp's convert_hf_to_gguf.py writes, with it what llama-quantize
makes of that (tensors in its order, ``general.quantization_version`` and ``general.file_type`` moved to the end;
src/llama-quant.cpp, `llama_model_quantize_impl`).
"""

from __future__ import annotations

from collections.abc import Sequence

from hf2q.catalog import Claim, claim
from hf2q.convert.choices import (
    QUANTIZATION_VERSION,
    Planned,
    Wanted,
    model_facts,
    plan_tensors,
    with_last_keys,
)
from hf2q.convert.importance import Importance
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
from hf2q.errors import ContractError, UsageError
from hf2q.formats.gguf.layout import DEFAULT_ALIGNMENT
from hf2q.formats.tokenizer import read_tokenizer
from hf2q.plugins import Plugins
from hf2q.types import HParams, MetadataField, Plan, PolicyOptions, Recipe, resolve


def make_plan(
    source: Source,
    recipe: Recipe,
    plugins: Plugins,
    *,
    via: str = "auto",
    mtp: bool = True,
    pre: str | None = None,
    options: PolicyOptions | None = None,
    importance: Importance | None = None,
) -> Planned:
    """Decide everything about the output file. `options` says that there is importance when there is.

    Errors: UnknownNameError for a family or codec that no plugin provides; UsageError for a `via` that cannot be, and
    for options that cannot be followed; ConfigError and TensorMismatchError for a checkpoint that is not understood.
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
    values = {field.key: field.value for field in own}
    wanted = _wanted(ordered, recipe, intermediate)
    choices = recipe.choose([one.choice_input for one in wanted], model_facts(entry.arch, values.get), options)
    tensors = plan_tensors(wanted, choices, recipe, plugins, importance=importance, alignment=DEFAULT_ALIGNMENT)
    plan = Plan(
        arch=entry.arch,
        recipe=recipe.name,
        via=intermediate,
        metadata=_metadata(entry.arch, recipe, described, own, tokenizer, importance),
        tensors=tensors,
        ignored=claims.ignored,
    )
    by_name = {c.spec.name: c for c in ordered}
    return Planned(
        plan=plan,
        rows=lambda name: build_rows(by_name[name], source.checkpoint, hparams),
        importance=importance,
    )


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


def _wanted(ordered: Sequence[Claim], recipe: Recipe, intermediate: str) -> list[Wanted]:
    wanted = []
    for one in ordered:
        kept = kept_because(one)
        wanted.append(
            Wanted(
                name=one.spec.name,
                shape=squeezed(one.spec.shape) if recipe.quantizes else one.spec.shape,
                qtype="F32" if kept else intermediate.upper(),
                inputs=one.inputs,
                transform=one.spec.rule.transform,
                kept=kept,
            )
        )
    return wanted


def _metadata(
    arch: str,
    recipe: Recipe,
    described: Sequence[MetadataField],
    own: Sequence[MetadataField],
    tokenizer: Sequence[MetadataField],
    importance: Importance | None,
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
        fields = [*with_last_keys(fields, recipe, importance)]
    keys = {field.key for field in fields}
    if len(keys) != len(fields) or file_type.key not in keys:
        raise ContractError(f"the hparams of {arch} write a key twice, or leave out {file_type.key}")
    return tuple(fields)
