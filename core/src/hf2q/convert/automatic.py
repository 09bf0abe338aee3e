"""``--quant auto``, and the type that values pass through: what llama.cpp's converter does with ``--outtype auto``.

Most checkpoints are written in their own 16-bit type. A family may have a mix of its own for the types that it is
published in (`TensorCatalog.auto`); such a file is called by the type that most of its weights have, as the values of
``general.file_type`` are (llama.cpp, include/llama.h, `llama_ftype`: "mostly").

Weights that are stored with scales are expanded to float32 and quantized from these exact values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import prod
from types import MappingProxyType
from typing import cast

import msgspec

from hf2q.convert.choices import Wanted
from hf2q.convert.tensors import INTERMEDIATES
from hf2q.errors import ContractError, UsageError
from hf2q.plugins import Plugins
from hf2q.types import Recipe, Record, TensorCatalog, TensorSpec, resolve

AUTO = "auto"
MOSTLY: Mapping[str, tuple[str, int]] = MappingProxyType(
    {"F32": ("f32", 0), "F16": ("f16", 1), "Q8_0": ("q8_0", 7), "BF16": ("bf16", 32), "MXFP4": ("mxfp4_moe", 38)}
)
"""Name and ``general.file_type`` of a file most of whose weights have the type."""

FamilyType = Callable[[TensorSpec, str], str]
"""What `TensorCatalog.auto` names."""


class Base(Record, frozen=True, kw_only=True):
    """What tensors are before a recipe chooses: `intermediate`, unless the family says otherwise of one.

    recipe    the one to follow, which for ``auto`` is that of the checkpoint's own type
    own_type  the family's answer for one tensor and the dtype of its source; "" for `intermediate`
    """

    recipe: Recipe
    intermediate: str
    own_type: FamilyType

    def settled(self, wanted: Iterable[Wanted]) -> Recipe:
        """The recipe, with the name and file type of a family's own mix once that is known."""
        if self.recipe.name != AUTO:
            return self.recipe
        weights: Counter[str] = Counter()
        for tensor in wanted:
            weights[tensor.qtype] += prod(tensor.shape)
        [(most, _)] = weights.most_common(1)
        if most not in MOSTLY:
            raise ContractError(f"most weights of a file that is written as it is are {most}, expected {list(MOSTLY)}")
        name, ftype = MOSTLY[most]
        return msgspec.structs.replace(self.recipe, name=name, ftype=ftype)


def choose_base(
    recipe: Recipe, via: str, catalog: TensorCatalog, plugins: Plugins, *, automatic: str, scaled: bool
) -> Base:
    """What comes before quantization, for a checkpoint whose 16-bit type is `automatic`.

    Errors: UsageError for a `via` that is unknown or cannot be followed.
    """
    if via != AUTO and via not in INTERMEDIATES:
        raise UsageError(f"--via {via} is unknown, expected auto or one of {', '.join(INTERMEDIATES)}")
    mixed = bool(catalog.auto)
    if recipe.quantizes:
        if via != AUTO or scaled:
            return Base(recipe=recipe, intermediate="f32" if via == AUTO else via, own_type=_none)
        return Base(recipe=recipe, intermediate=automatic, own_type=_family_type(catalog) if mixed else _none)
    if via not in (AUTO, recipe.name):
        hint = "use it with a quantized mix" if recipe.name == AUTO else f"leave --via out, or use --quant {via}"
        raise UsageError(f"--quant {recipe.name} is written directly; --via {via} contradicts it", hint=hint)
    if recipe.name == AUTO and mixed:
        return Base(recipe=recipe, intermediate=automatic, own_type=_family_type(catalog))
    plain = plugins.recipes[automatic] if recipe.name == AUTO else recipe
    return Base(recipe=plain, intermediate=plain.name, own_type=_none)


def _family_type(catalog: TensorCatalog) -> FamilyType:
    return cast("FamilyType", resolve(catalog.auto))


def _none(spec: TensorSpec, dtype: str) -> str:
    return ""
