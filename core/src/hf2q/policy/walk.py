"""`choose_types`: the order in which options, a recipe's own mix and the shape decide a tensor's type.

1. What is never quantized keeps its type (`tensors.why_kept`); so does output.weight with ``--leave-output-tensor``.
2. ``--token-embedding-type`` and ``--output-tensor-type`` decide their tensors, whatever the shape.
3. For recipes that quantize: the first ``--tensor-type`` that matches, else the default with ``--pure``, else
   ``--output-tensor-type`` for embeddings that stand in for the output, else the mix. Other recipes give the default.
4. A type whose blocks do not fit the rows gives way to another (`shapes.fallback`).

Tensors that 2 and 3 decide without the mix are not counted by it, so overriding some layers moves the mix's schedule
for the ones after them, as in the reference. Source: llama.cpp, src/llama-quant.cpp, `llama_tensor_get_type`,
`llama_tensor_get_type_impl` (tied embeddings) and `tensor_requires_imatrix`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from hf2q.errors import UsageError
from hf2q.formats.ggml_types import GGML_TYPES
from hf2q.policy.options import Wishes
from hf2q.policy.shapes import fallback, fits
from hf2q.policy.tensors import EMBEDDINGS, OUTPUT, PER_LAYER_EMBEDDING, role_of, why_kept
from hf2q.types import ModelFacts, PolicyOptions, Recipe, TensorChoiceInput, TypeChoice

Mix: TypeAlias = Callable[[TensorChoiceInput], tuple[str, str]]
"""A recipe's own rules: the type for one tensor, shape aside, and the rule that says so. Called in file order."""

NEED_IMPORTANCE = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"})
Q2_K_S = 21
"""The ftype of the only recipe whose Q2_K tensors need importance."""


def choose_types(
    recipe: Recipe, tensors: Sequence[TensorChoiceInput], facts: ModelFacts, options: PolicyOptions, mix: Mix
) -> Iterator[TypeChoice]:
    """A type for each tensor, in order, with the rule that chose it and the type it fell back from.

    Errors: UsageError for options that cannot be followed, and for a tensor that needs importance when there is none.
    """
    wishes = Wishes(options)
    tied = all(tensor.name != OUTPUT for tensor in tensors)
    for tensor in tensors:
        kept = why_kept(tensor.name, tensor.shape, facts.arch)
        if not kept and tensor.name == OUTPUT and options.leave_output_tensor:
            kept = wishes.use("--leave-output-tensor")
        if kept:
            yield TypeChoice(qtype=tensor.qtype, reason=kept)
            continue
        exact = _exact(tensor, wishes)
        if exact is not None:
            choice = exact
        elif GGML_TYPES[recipe.default].block_size == 1:
            choice = TypeChoice(qtype=recipe.default, reason=f"default of {recipe.name}")
        else:
            choice = _fitted(tensor, *_wanted(recipe, tensor, options, wishes, mix, tied))
        yield _with_need(recipe, tensor, choice, options)
    wishes.report()


def _exact(tensor: TensorChoiceInput, wishes: Wishes) -> TypeChoice | None:
    """Step 2: the type that an option gives this very tensor."""
    role = role_of(tensor.name)
    # the table of per-layer embeddings is large and apart, so a pattern may name it
    named = tensor.name == PER_LAYER_EMBEDDING and wishes.pattern_for(tensor.name) is not None
    if role == "token_embd" and wishes.embedding and not named:
        qtype, flag = wishes.embedding, "--token-embedding-type"
    elif role == "output" and wishes.output:
        qtype, flag = wishes.output, "--output-tensor-type"
    else:
        return None
    columns = tensor.shape[-1]
    if not fits(qtype, columns):
        raise UsageError(
            f"{flag} {qtype}: {tensor.name} has rows of {columns} weights, which are no whole blocks of "
            f"{GGML_TYPES[qtype].block_size}",
            hint=f"a type with smaller blocks, for example {flag} q8_0 or f16",
        )
    return TypeChoice(qtype=qtype, reason=wishes.use(f"{flag} {qtype}"))


def _wanted(
    recipe: Recipe, tensor: TensorChoiceInput, options: PolicyOptions, wishes: Wishes, mix: Mix, tied: bool
) -> tuple[str, str]:
    """Step 3: the type before the shape is looked at, and the rule that chose it."""
    manual = wishes.pattern_for(tensor.name)
    if manual is not None:
        return manual[0], wishes.use(manual[1])
    if options.pure:
        return recipe.default, "--pure"
    if tied and wishes.output and role_of(tensor.name) == "token_embd":
        label = wishes.use(f"--output-tensor-type {wishes.output}")
        return wishes.output, f"{label}, for embeddings that stand in for the output"
    return mix(tensor)


def _fitted(tensor: TensorChoiceInput, wanted: str, reason: str) -> TypeChoice:
    """Step 4."""
    columns = tensor.shape[-1]
    qtype = fallback(wanted, columns)
    if qtype == wanted:
        return TypeChoice(qtype=qtype, reason=reason)
    block = GGML_TYPES[wanted].block_size
    why = f"rows of {columns} are no multiple of {block}, so {wanted} gives way to {qtype}"
    return TypeChoice(qtype=qtype, reason=f"{reason}; {why}", fallback_from=wanted)


def _with_need(recipe: Recipe, tensor: TensorChoiceInput, choice: TypeChoice, options: PolicyOptions) -> TypeChoice:
    """The choice, marked where it needs importance."""
    needs = choice.qtype in NEED_IMPORTANCE or (choice.qtype == "Q2_K" and recipe.ftype == Q2_K_S)
    if not needs or choice.qtype == tensor.qtype or tensor.name in (OUTPUT, *EMBEDDINGS):
        return choice
    if not options.has_imatrix:
        raise UsageError(
            f"{recipe.name} gives {tensor.name} the type {choice.qtype} ({choice.reason}), which ruins a tensor "
            "unless the importance of its columns is known",
            hint="give an importance matrix with --imatrix, or choose a larger type, for example --quant q3_k_m",
        )
    return msgspec.structs.replace(choice, needs_importance=True)
