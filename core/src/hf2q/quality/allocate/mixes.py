"""The fixed mixes that a search has to beat, as choices among the types that it tries.

A mix that gives a type that is not tried is none of them: it loses more than those of its size that are tried
(`hf2q.quality.allocate.candidates`).
"""

from __future__ import annotations

from collections.abc import Sequence

from hf2q.convert.choices import model_facts
from hf2q.errors import UsageError
from hf2q.formats.ggml_types import GGML_TYPES
from hf2q.plugins import Plugins
from hf2q.types import ModelFacts, Plan, PolicyOptions, TensorChoiceInput


def facts_of(plan: Plan) -> ModelFacts:
    """What recipes may ask of the model that is planned."""
    values = {field.key: field.value for field in plan.metadata}
    return model_facts(plan.arch, values.get)


def fixed_mixes(
    tensors: Sequence[TensorChoiceInput], facts: ModelFacts, plugins: Plugins, *, has_imatrix: bool
) -> dict[str, tuple[str, ...]]:
    """The types of all tensors, by the name of each mix that this model can be quantized by.

    A mix that refuses the model, or needs importance that is not known, is left out.
    """
    found = {}
    for recipe in plugins.recipes:
        if not recipe.quantizes or GGML_TYPES[recipe.default].block_size == 1:
            continue
        try:
            choices = recipe.choose(tensors, facts, PolicyOptions(has_imatrix=has_imatrix))
        except UsageError:
            continue
        found[recipe.name] = tuple(choice.qtype for choice in choices)
    return found


def picks_of(types: Sequence[str], tried: Sequence[Sequence[str]]) -> tuple[int, ...] | None:
    """For each tensor the place of the type that a mix gives it, None where one is not among those tried.

    tried  the types of each tensor, a single one where there is no choice
    """
    picks = []
    for qtype, options in zip(types, tried, strict=True):
        if qtype not in options:
            return None
        picks.append(options.index(qtype))
    return tuple(picks)
