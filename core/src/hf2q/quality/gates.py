"""Whether a measured file is within the quality bounds of its family. Pure: numbers in, a verdict out.

A family's `Thresholds` bound two kinds of mixes, told by the types of the matrices in the blocks: the smallest has 4
bits, the largest 6 (``4-6``) or 8 (``4-8``). Anything else has no bound, and passes saying so. A measurement that was
skipped for a reason passes with the reason; one that was made and lacks a number fails.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Literal

from hf2q.types import Record, Thresholds

Mix = Literal["4-6", "4-8"]
Outcome = Literal["passed", "failed", "unbounded", "skipped"]

_BITS = re.compile(r"(?:I?Q|TQ|MXFP|NVFP)(\d)(?:_|$)")


class Measured(Record, frozen=True, kw_only=True):
    """What was measured: the candidate's perplexity over the reference's, and the median KL in nats over tokens.

    skipped  why nothing was measured, "" when something was
    """

    ppl_ratio: float | None = None
    median_kl: float | None = None
    skipped: str = ""


class Bound(Record, frozen=True, kw_only=True):
    """A quantity of `Measured`, the most that is allowed, and what it is for people."""

    name: str
    most: float
    label: str


class Verdict(Record, frozen=True, kw_only=True):
    """How a file fares.

    outcome     ``failed`` is the only one that is no pass
    mix         the kind of mix that the bounds are for, "" for none
    violations  one sentence for each bound that does not hold
    reason      why there was nothing to judge, where the outcome is ``unbounded`` or ``skipped``
    """

    outcome: Outcome
    mix: str
    bounds: tuple[Bound, ...] = ()
    violations: tuple[str, ...] = ()
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the file."""
        return self.outcome != "failed"


def bits_of(qtype: str) -> int | None:
    """Nominal bits of a quantized type's numbers: 4 of ``Q4_K``; None for a type that is not quantized."""
    found = _BITS.match(qtype.upper())
    return int(found[1]) if found else None


def mix_of(tensors: Iterable[tuple[str, str]]) -> Mix | None:
    """The kind of mix of a file, by pairs (name, qtype) of its tensors: by the quantized ones in its blocks.

    Embeddings and the output are left out: every recipe treats them apart, also those that are no mix (q4_0).
    """
    bits = {found for name, qtype in tensors if name.startswith("blk.") and (found := bits_of(qtype)) is not None}
    if not bits or min(bits) != 4:
        return None
    return "4-6" if max(bits) == 6 else "4-8" if max(bits) == 8 else None


def bounds_for(thresholds: Thresholds, mix: Mix) -> tuple[Bound, ...]:
    """What a family asks of a kind of mix."""
    ratio = thresholds.ppl_ratio_4_6 if mix == "4-6" else thresholds.ppl_ratio_4_8
    return (
        Bound(name="ppl_ratio", most=ratio, label="perplexity ratio"),
        Bound(name="median_kl", most=thresholds.median_kl, label="median KL in nats"),
    )


def unbounded(arch: str, thresholds: Thresholds | None, mix: Mix | None) -> str:
    """Why no bound is for such a file, or "" when one is."""
    if thresholds is None:
        return f"the family {arch} has no bounds"
    return "" if mix is not None else f"the bounds of {arch} are for mixes of 4 to 6 and 4 to 8 bits, which this is not"


def judge(arch: str, thresholds: Thresholds | None, mix: Mix | None, measured: Measured) -> Verdict:
    """The verdict about a file of family `arch`."""
    reason = unbounded(arch, thresholds, mix)
    if reason or thresholds is None or mix is None:
        return Verdict(outcome="unbounded", mix=mix or "", reason=reason)
    bounds = bounds_for(thresholds, mix)
    if measured.skipped:
        return Verdict(outcome="skipped", mix=mix, bounds=bounds, reason=measured.skipped)
    values = {"ppl_ratio": measured.ppl_ratio, "median_kl": measured.median_kl}
    wrong = tuple(text for bound in bounds if (text := _violation(bound, values[bound.name])))
    return Verdict(outcome="failed" if wrong else "passed", mix=mix, bounds=bounds, violations=wrong)


def _violation(bound: Bound, value: float | None) -> str:
    if value is None:
        return f"{bound.label} was not measured, and nothing says why"
    if not math.isfinite(value) or value < 0:
        return f"{bound.label} is {value}, which is no measurement"
    return f"{bound.label} is {value:.6g}, allowed is at most {bound.most:g}" if value > bound.most else ""
