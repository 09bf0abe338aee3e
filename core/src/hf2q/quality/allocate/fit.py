"""From divergences of groups of tensors to what a loss counts in each tensor.

A group is what is tried at once: the tensors of one kind (the same in every block) in one band of blocks. Within a
group, weights keep their proportion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hf2q.types import Record

FLOOR = 0.01
"""Of its weight without a text that a tensor keeps at least: of a divergence near 0 more is noise than is not."""
BANDS = 8
"""Bands of blocks at most: each is one more file for each kind that is written and run."""
SMALL = 0.01
"""A kind with less than this share of all weights is tried at once: its types decide about few bytes."""

Groups = Mapping[str, Sequence["Trial"]]


class Trial(Record, frozen=True, kw_only=True):
    """A tensor to be tried.

    qtype       a type, and `loss` in it;  weight  what a loss counts so far;  drafting  not part of predictions
    parameters  how many weights it has
    """

    name: str
    qtype: str
    loss: float
    weight: float
    drafting: bool
    parameters: int


def kind_of(name: str) -> str:
    """The name of a tensor without numbers: the same in every block."""
    return re.sub(r"\d+", "*", name)


def block_of(name: str) -> int | None:
    """The number of the tensor's block, None outside of blocks."""
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else None


def grouped(tensors: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Those that predictions depend on by kind, and of a kind that is not `SMALL` by band: `BANDS` of equally many
    blocks, or fewer bands of one block. Keys say what is in a group.
    """
    counted = [one for one in tensors if one.weight and not one.drafting]
    blocks = sorted({number for one in counted if (number := block_of(one.name)) is not None})
    band_of = {number: place * min(BANDS, len(blocks)) // len(blocks) for place, number in enumerate(blocks)}
    kinds: dict[str, list[Trial]] = {}
    for one in counted:
        kinds.setdefault(kind_of(one.name), []).append(one)
    least = SMALL * sum(one.parameters for one in counted)
    groups: dict[str, list[Trial]] = {}
    for kind, members in kinds.items():
        if sum(one.parameters for one in members) < least:
            groups[kind] = members
            continue
        for one in members:
            number = block_of(one.name)
            band = None if number is None else band_of[number]
            inside = [other for other in blocks if band_of[other] == band]
            where = f", blocks {inside[0]} to {inside[-1]}" if len(inside) > 1 else ""
            groups.setdefault(kind + where if where else one.name, []).append(one)
    return groups


def fitted(tensors: Sequence[Trial], groups: Groups, means: Mapping[str, float]) -> dict[str, float]:
    """What a loss counts in each of `tensors`, by name; `means` has the divergence of each group that was measured.

    In blocks that draft it counts as in others of the kind, in proportion to `Trial.weight`; where there are no others,
    and for what loses nothing, it stays.
    """
    found = {one.name: one.weight for one in tensors}
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    for name, members in groups.items():
        if name not in means:
            continue
        total = sum(one.weight * one.loss for one in members)
        scale = max(FLOOR, means[name] / total)
        found |= {one.name: one.weight * scale for one in members}
        kind = kind_of(members[0].name)
        before[kind] = before.get(kind, 0.0) + total
        after[kind] = after.get(kind, 0.0) + total * scale
    for one in tensors:
        kind = kind_of(one.name)
        if one.drafting and kind in before:
            found[one.name] = one.weight * after[kind] / before[kind]
    return found
