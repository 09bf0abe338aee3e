"""The plan of an output file, from headers alone: no weight is read here.

Which files it equals: without quantization what llama.cpp's convert_hf_to_gguf.py writes, with it what llama-quantize
makes of that (tensors in its order, ``general.quantization_version`` and ``general.file_type`` moved to the end;
src/llama-quant.cpp, `llama_model_quantize_impl`).
"""

from __future__ import annotations

from collections.abc import Sequence

from hf2q.catalog import Claim, claim
from hf2q.convert.automatic import Base, choose_base
from hf2q.convert.choices import (
    QUANTIZATION_VERSION,
    Planned,
    Retype,
    Wanted,
    model_facts,
    plan_tensors,
    with_last_keys,
)
from hf2q.convert.family import completed
from hf2q.convert.importance import Importance
from hf2q.convert.metadata import general_metadata
from hf2q.convert.scaled import as_stored, is_scaled, left_out_scales
from hf2q.convert.sidefiles import with_side_files
from hf2q.convert.source import Source
from hf2q.convert.tensors import (
    automatic,
    build_rows,
    in_converter_order,
    kept,
    quantize_order,
    squeezed,
)
from hf2q.errors import ContractError
from hf2q.formats.gguf.layout import DEFAULT_ALIGNMENT
from hf2q.formats.tokenizer import read_tokenizer
from hf2q.plugins import Plugins
from hf2q.rows import held_by, packed_as
from hf2q.types import ArchEntry, HParams, MetadataField, Plan, PolicyOptions, Recipe, Rows, TypeChoice, resolve


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
    retype: Retype | None = None,
    name: str | None = None,
) -> Planned:
    """Decide everything about the output file. `options` says that there is importance when there is; `retype` has the
    last word on types; `name` stands in for the directory's.

    Errors: UnknownNameError for a family or codec that no plugin provides; UsageError for a `via` that cannot be, and
    for options that cannot be followed; ConfigError and TensorMismatchError for a checkpoint that is not understood.
    """
    source = completed(source, plugins)
    entry = plugins.arch_for(source.hf_architecture)
    config = with_side_files(source.directory, source.config, entry.side_files)
    hparams: HParams = resolve(entry.hparams).from_config(config, source.checkpoint.tensors.values(), mtp=mtp)
    catalog = plugins.catalog(entry.catalog)
    claims = claim(catalog, catalog.expand(hparams), source.checkpoint.tensors.values(), mtp=mtp)
    left_out = {name for name, _ in claims.ignored}
    used = as_stored(source.checkpoint, (name for name in source.checkpoint.tensors if name not in left_out))
    ordered = in_converter_order(claims.claimed, source.checkpoint.tensors)
    # made here, so that a wrong shape is found before anything is written, and not kept: experts are many
    forms = {one.spec.name: _form(build_rows(one, source.checkpoint, hparams)) for one in ordered}
    base = choose_base(recipe, via, catalog, plugins, automatic=automatic(used), scaled=is_scaled(source.checkpoint))
    own = hparams.metadata()
    described = general_metadata(source.directory, source.config, [(c.spec.name, c.spec.shape) for c in ordered], name)
    n_vocab = hparams.symbols["n_vocab"]
    tokenizer = read_tokenizer(source.directory, n_vocab, source.config, entry.pre_tokenizers, pre)
    if recipe.quantizes:
        ordered.sort(key=lambda c: quantize_order(c.spec.name))
    values = {field.key: field.value for field in own}
    wanted = [_wanted(one, *forms[one.spec.name][:2], base) for one in ordered]
    recipe = base.settled(wanted)
    inputs = [one.choice_input for one in wanted]
    choices: Sequence[TypeChoice] = recipe.choose(inputs, model_facts(entry.arch, values.get), options)
    if retype is not None:
        choices = retype(inputs, choices)
    tensors = plan_tensors(wanted, choices, recipe, plugins, importance=importance, alignment=DEFAULT_ALIGNMENT)
    plan = Plan(
        arch=entry.arch,
        recipe=recipe.name,
        via=base.intermediate,
        metadata=_metadata(entry, recipe, described, own, tokenizer, importance),
        tensors=tensors,
        ignored=(*claims.ignored, *left_out_scales(source.checkpoint)),
    )
    by_name = {c.spec.name: c for c in ordered}
    return Planned(
        plan=plan,
        rows=lambda name: build_rows(by_name[name], source.checkpoint, hparams),
        importance=importance,
        held=max((held for _, _, held in forms.values()), default=0),
    )


def _form(made: Rows) -> tuple[str, str, int]:
    """The dtype of the source, the GGUF type that it has the same values in, or "", and what reading holds."""
    return made.dtype, packed_as(made), held_by(made)


def _wanted(one: Claim, dtype: str, packed: str, base: Base) -> Wanted:
    own, why = kept(one)
    matrix = len(one.spec.shape) > 1 and not one.spec.name.endswith("_norm.weight")
    if matrix and own in ("", "F32") and (found := base.own_type(one.spec, dtype)):
        own, why = found, f"{dtype} of the checkpoint"
    return Wanted(
        name=one.spec.name,
        shape=squeezed(one.spec.shape) if base.recipe.quantizes else one.spec.shape,
        qtype=own or base.intermediate.upper(),
        inputs=one.inputs,
        transform=one.spec.rule.transform,
        packed=packed,
        kept=why,
    )


def _metadata(
    entry: ArchEntry,
    recipe: Recipe,
    described: Sequence[MetadataField],
    own: Sequence[MetadataField],
    tokenizer: Sequence[MetadataField],
    importance: Importance | None,
) -> tuple[MetadataField, ...]:
    file_type = MetadataField.u32("general.file_type", recipe.ftype)
    arch = MetadataField.string("general.architecture", entry.arch)
    fields = [
        MetadataField.string("general.type", "model"),
        *described,
        *(file_type if field.key == file_type.key else field for field in own),
        QUANTIZATION_VERSION,
        *tokenizer,
    ]
    first = [field for field in fields if field.key in entry.first_keys]
    fields = [arch, *first, *(field for field in fields if field.key not in entry.first_keys)]
    if recipe.quantizes:
        fields = [*with_last_keys(fields, recipe, importance)]
    keys = {field.key for field in fields}
    if len(keys) != len(fields) or file_type.key not in keys:
        raise ContractError(f"the hparams of {entry.arch} write a key twice, or leave out {file_type.key}")
    return tuple(fields)
