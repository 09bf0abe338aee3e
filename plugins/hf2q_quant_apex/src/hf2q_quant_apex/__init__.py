"""hf2q-quant-apex: the APEX tiers, mixes of types for mixture-of-experts models.

`tiers` says which type a tensor gets by its role and its region of the model, `roles` which role and region that is,
`published` which published models have lists of their own. Importing this package imports none of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from hf2q.hookspecs import hookimpl
from hf2q.types import Recipe

HF2Q_PLUGIN_API = 1

RECIPES = (
    # name, value of general.file_type (a label only: the types are in the tensor infos), type that --pure gives
    ("apex-quality", 18, "Q6_K"),
    ("apex-i-quality", 18, "Q6_K"),
    ("apex-balanced", 17, "Q5_K"),
    ("apex-i-balanced", 17, "Q5_K"),
    ("apex-compact", 15, "Q4_K"),
    ("apex-i-compact", 15, "Q4_K"),
    ("apex-mini", 11, "Q3_K"),
)


@hookimpl
def hf2q_recipes() -> Iterator[Recipe]:
    """One for each tier."""
    for name, ftype, default in RECIPES:
        yield Recipe(name=name, ftype=ftype, default=default, policy="hf2q_quant_apex.policy:policy", quantizes=True)
