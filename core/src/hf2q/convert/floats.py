"""The policy of the recipes f32, f16 and bf16: files as llama.cpp's converter writes them.

The type that such a tensor has "before quantization" is the one it keeps, so there is nothing left to choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hf2q.types import ModelFacts, Recipe, TensorChoiceInput, TypeChoice


def policy(recipe: Recipe, tensors: Sequence[TensorChoiceInput], facts: ModelFacts) -> Iterator[TypeChoice]:
    """Every tensor as it is."""
    for tensor in tensors:
        yield TypeChoice(qtype=tensor.qtype, reason=f"default of {recipe.name}")
