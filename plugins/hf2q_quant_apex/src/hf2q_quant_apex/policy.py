"""The policy of the APEX tiers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from hf2q.errors import TensorMismatchError, UsageError
from hf2q.policy import choose_types
from hf2q.types import ModelFacts, PolicyOptions, Recipe, TensorChoiceInput, TypeChoice
from hf2q_quant_apex.published import MODELS, OWN, fingerprint
from hf2q_quant_apex.roles import layer_of, region_of, role_of
from hf2q_quant_apex.tiers import ALWAYS, TIERS

log = logging.getLogger(__name__)

ARCHS = ("qwen35moe", "gemma4", "minimax-m2")
"""Archs that the tiers were made for."""


def policy(
    recipe: Recipe, tensors: Sequence[TensorChoiceInput], facts: ModelFacts, options: PolicyOptions
) -> Iterator[TypeChoice]:
    """A type for each tensor, in file order.

    Errors: UsageError for a model that is no mixture of experts or of an arch that the tiers were not made for, for a
    tier that needs an importance matrix when there is none, and for options that cannot be followed;
    TensorMismatchError for a tensor of a block that the model does not have.
    """
    _check(recipe, facts, options)
    return choose_types(recipe, tensors, facts, options, ApexMix(recipe, facts))


def _check(recipe: Recipe, facts: ModelFacts, options: PolicyOptions) -> None:
    if facts.n_expert <= 1:
        raise UsageError(
            f"{recipe.name} is for mixtures of experts; this {facts.arch} model has "
            f"{'one expert' if facts.n_expert else 'no experts'}",
            hint="--quant q5_k_m",
        )
    if facts.arch not in ARCHS:
        raise UsageError(
            f"{recipe.name} was made for {', '.join(ARCHS)}, not for {facts.arch}",
            hint="--quant q5_k_m, or --tensor-type PATTERN=TYPE for a mix of one's own",
        )
    if recipe.name.startswith("apex-i-") and not options.has_imatrix:
        raise UsageError(
            f"{recipe.name} encodes by importance, and there is no importance matrix",
            hint="--imatrix FILE, or --imatrix-corpus NAME to compute one; "
            f"{recipe.name.replace('-i-', '-')} needs none",
        )


class ApexMix:
    """The mix of a tier for one model; see `hf2q.policy.walk.Mix`."""

    def __init__(self, recipe: Recipe, facts: ModelFacts) -> None:
        name = recipe.name.removeprefix("apex-").removeprefix("i-")
        self._recipe, self._layers = recipe, facts.n_layer
        found = fingerprint(facts)
        model = MODELS.get(found, "")
        self._tier = OWN.get((model, name), TIERS[name])
        self._of = f" of {model}" if model else ""
        if model:
            log.info(
                "auto-detected APEX config: %s_%s (fingerprint=%s, tier=%s, arch=%s)",
                model,
                name,
                found[:16],
                recipe.name.removeprefix("apex-"),
                facts.arch,
            )

    def __call__(self, tensor: TensorChoiceInput) -> tuple[str, str]:
        """The type before the shape is looked at, and the rule that chose it."""
        role, layer = role_of(tensor.name), layer_of(tensor.name)
        if layer is not None and layer >= self._layers:
            raise TensorMismatchError(f"{tensor.name} is of block {layer}, but the model has {self._layers} blocks")
        region = region_of(role, layer, self._layers)
        where = role if role in ALWAYS else f"{role} at the {region}" if region == "edge" else f"{role}, {region}"
        return self._tier.type_of(role, region), f"{where} in {self._recipe.name}{self._of}"
