"""The plan of a file made from a GGUF file, from headers alone: what llama-quantize would write.

Source: llama.cpp, src/llama-quant.cpp, `llama_model_quantize_impl`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hf2q.convert.choices import Planned, Retype, Wanted, model_facts, plan_tensors, with_last_keys
from hf2q.convert.gguf_source import GgufSource, stored_shape
from hf2q.convert.importance import Importance
from hf2q.convert.provenance import without_provenance
from hf2q.convert.tensors import quantize_order
from hf2q.errors import UnknownNameError, UsageError, listing
from hf2q.formats.ggml_types import GGML_TYPES
from hf2q.formats.gguf.encode import alignment_of
from hf2q.formats.gguf.shards import SPLIT_KEYS
from hf2q.plugins import Plugins
from hf2q.policy import asked_for, choose_types
from hf2q.types import ModelFacts, Plan, PolicyOptions, Recipe, TensorPlan, TypeChoice


def make_gguf_plan(
    source: GgufSource,
    recipe: Recipe,
    plugins: Plugins,
    *,
    options: PolicyOptions,
    importance: Importance | None = None,
    allow_requantize: bool = False,
    keep_split: bool = False,
    retype: Retype | None = None,
) -> Planned:
    """Decide everything about the output.

    keep_split  keep the order of the source's files, which the mix then counts in, instead of llama-quantize's own
    retype      has the last word on types

    Errors: UsageError for quantized tensors that would change, unless that is allowed, and for options that cannot be
    followed; UnknownNameError for types that no plugin encodes or decodes; what `plan_tensors` raises.
    """
    names = list(source.tensors) if keep_split else sorted(source.tensors, key=quantize_order)
    wanted = [
        Wanted(
            name=tensor.name,
            shape=stored_shape(tensor),
            qtype=tensor.qtype,
            inputs=(tensor.name,),
            stored=True,
        )
        for _, tensor in (source.tensors[name] for name in names)
    ]
    first = source.first
    facts = model_facts(first.arch, first.metadata.get)
    choices: Sequence[TypeChoice] = _choose(recipe, wanted, facts, options)
    if retype is not None:
        choices = retype([tensor.choice_input for tensor in wanted], choices)
    kept = without_provenance([first.field(key) for key in first.keys_in_order if key not in SPLIT_KEYS])
    metadata = with_last_keys(kept, recipe, importance)
    tensors = plan_tensors(wanted, choices, recipe, plugins, importance=importance, alignment=alignment_of(metadata))
    _check_decodable(tensors, plugins, allow_requantize=allow_requantize)
    plan = Plan(arch=first.arch, recipe=recipe.name, via="", metadata=metadata, tensors=tensors)
    return Planned(
        plan=plan,
        rows=lambda name: source.rows(name, plugins.codecs.get(source.tensors[name][1].qtype)),
        importance=importance,
    )


def _choose(recipe: Recipe, wanted: list[Wanted], facts: ModelFacts, options: PolicyOptions) -> tuple[TypeChoice, ...]:
    inputs = [tensor.choice_input for tensor in wanted]
    if GGML_TYPES[recipe.default].block_size > 1:
        return recipe.choose(inputs, facts, options)
    unusable = asked_for(PolicyOptions(pure=options.pure, tensor_types=options.tensor_types))
    if options.has_imatrix:
        unusable.append("--imatrix")
    if unusable:
        raise UsageError(
            f"--quant {recipe.name} gives every tensor the same type, so it cannot follow {' and '.join(unusable)}",
            hint="choose a quantized mix, for example --quant q8_0",
        )
    default = (recipe.default, f"default of {recipe.name}")
    return tuple(choose_types(recipe, inputs, facts, options, lambda tensor: default))


def _check_decodable(tensors: tuple[TensorPlan, ...], plugins: Plugins, *, allow_requantize: bool) -> None:
    """Refuse to change what cannot be decoded, and what is quantized already unless that was asked for."""
    changed = [tensor for tensor in tensors if not tensor.copied]
    quantized = [f"{tensor.name} ({tensor.via} → {tensor.qtype})" for tensor in changed if _quantized(tensor.via)]
    if quantized and not allow_requantize:
        raise UsageError(
            f"{len(quantized)} tensors of the source are quantized already: {listing(quantized, 3)}",
            hint="convert from a file of f16, bf16 or f32; --allow-requantize does it all the same, with more loss",
        )
    for tensor in changed:
        try:
            plugins.codec(tensor.via)
        except UnknownNameError as error:
            raise UnknownNameError(
                f"{tensor.name} is stored as {tensor.via} and becomes {tensor.qtype}; {error.message}", hint=error.hint
            ) from error


def _quantized(qtype: str) -> bool:
    return GGML_TYPES[qtype].block_size > 1
