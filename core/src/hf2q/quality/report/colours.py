"""Colours: of types, from few bits to many, and of errors, from small to large.

The ramp is viridis, which stays in order for the colour-blind and in print (Smith and van der Walt, matplotlib,
`_cm_listed.py`); nine of its 256 values, and straight lines between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from hf2q.formats.ggml_types import GGML_TYPES

VIRIDIS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
STEPS = 7
"""Classes of errors."""


def ramp(place: float) -> str:
    """The colour at a place from 0 to 1."""
    at = min(1.0, max(0.0, place)) * (len(VIRIDIS) - 1)
    low = min(int(at), len(VIRIDIS) - 2)
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in VIRIDIS[low : low + 2]]
    mixed = [round(a + (b - a) * (at - low)) for a, b in zip(*ends, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)


def bits_of(qtype: str) -> float:
    """Bits per weight of a type."""
    kind = GGML_TYPES[qtype]
    return 8 * kind.type_size / kind.block_size


def type_classes(qtypes: Iterable[str]) -> Mapping[str, str]:
    """A class for each type that occurs, ``t0`` for that of the fewest bits."""
    ordered = sorted(set(qtypes), key=lambda qtype: (bits_of(qtype), qtype))
    return {qtype: f"t{number}" for number, qtype in enumerate(ordered)}


class ErrorClasses:
    """Classes of relative errors, on a logarithmic scale between the smallest and the largest there are."""

    def __init__(self, errors: Iterable[float | None]) -> None:
        known = [math.log10(error) for error in errors if error]
        self.any = bool(known)
        self.low, self.high = (min(known), max(known)) if known else (0.0, 0.0)

    def of(self, error: float | None) -> str:
        """``e0`` to ``e6``; ``none`` for no error at all, ``lost`` for one beside which the reference is nothing."""
        if error is None:
            return "lost"
        if error == 0:
            return "none"
        span = self.high - self.low
        place = (math.log10(error) - self.low) / span if span > 0 else 0.0
        return f"e{min(STEPS - 1, int(place * STEPS))}"

    def bounds(self) -> Sequence[tuple[str, float, float]]:
        """(class, from, to), none when nothing is off."""
        if not self.any:
            return []
        step = (self.high - self.low) / STEPS
        if step == 0:
            return [("e0", 10**self.low, 10**self.high)]
        return [(f"e{at}", 10 ** (self.low + at * step), 10 ** (self.low + (at + 1) * step)) for at in range(STEPS)]


def rules(types: Mapping[str, str]) -> str:
    """CSS for all classes, of table cells and of drawings."""
    last = max(1, len(types) - 1)
    found = {name: ramp(number / last) for number, name in enumerate(types.values())}
    # errors: the ramp the other way round, so that what is bad is dark in both
    found |= {f"e{at}": ramp(1 - at / (STEPS - 1)) for at in range(STEPS)}
    return "\n".join(f".{name}{{background:{colour};fill:{colour}}}" for name, colour in found.items())
