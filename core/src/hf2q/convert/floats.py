"""The policy of the recipes f32, f16 and bf16: files as llama.cpp's converter writes them.

The type that such a tensor has "before quantization" is the one it keeps, so there is nothing left to choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hf2q.errors import UsageError
from hf2q.policy import asked_for
from hf2q.types import ModelFacts, PolicyOptions, Recipe, TensorChoiceInput, TypeChoice


def policy(
    recipe: Recipe, tensors: Sequence[TensorChoiceInput], facts: ModelFacts, options: PolicyOptions
) -> Iterator[TypeChoice]:
    """Every tensor as it is. Errors: UsageError for any option, since nothing is quantized here."""
    unusable = asked_for(options)
    if unusable:
        raise UsageError(
            f"--quant {recipe.name} quantizes nothing, so it cannot follow {' and '.join(unusable)}",
            hint="choose a quantized mix, for example --quant q8_0",
        )
    for tensor in tensors:
        yield TypeChoice(qtype=tensor.qtype, reason=f"default of {recipe.name}")
