"""From options and what a loss counts to a choice, and with a text to the best of several choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod

import msgspec

from hf2q.errors import UsageError
from hf2q.formats.gguf.layout import DEFAULT_ALIGNMENT, padded
from hf2q.quality.allocate.budget import Budget
from hf2q.quality.allocate.fit import Trial
from hf2q.quality.allocate.found import Chosen, Rival
from hf2q.quality.allocate.sensitivity import Diverge, measured_weights
from hf2q.quality.allocate.solve import Option, Solution, solve
from hf2q.types import Record

WITH_TEXT, WITHOUT_TEXT = "the search", "the search without a text"
"""What choices are called beside the mixes."""

CLOSE = 1.5
"""A mix is run when it is expected to lose at most so many times what the choice does."""

Table = Sequence[Sequence[Chosen]]
"""The options of each tensor."""
Picks = tuple[int, ...]
"""The place of one option for each tensor."""
Mixes = Mapping[str, Picks]
Report = Callable[[str, int, int], None]


class Outcome(Record, frozen=True, kw_only=True):
    """A choice, what it was chosen from and beside what; see `Found`. `solution` is the best by the weights."""

    table: Table
    solution: Solution
    picks: Picks
    rivals: tuple[Rival, ...]
    divergence: float | None = None
    winner: str = ""

    @property
    def chosen(self) -> tuple[Chosen, ...]:
        """The option taken for each tensor."""
        return tuple(options[pick] for options, pick in zip(self.table, self.picks, strict=True))

    @property
    def loss(self) -> float:
        """What the choice loses, each tensor by its weight."""
        return loss_of(self.table, self.picks)


def by_weights(table: Table, mixes: Mixes, budget: Budget, nbytes: int, parameters: int) -> Outcome:
    """The best choice by what a loss counts in each tensor. Parameters and errors as `solved`."""
    solution = solved(table, budget, nbytes, parameters, mixes.values())
    rivals = rivals_of(table, mixes, budget, nbytes)
    return Outcome(table=table, solution=solution, picks=solution.picks, rivals=rivals)


def by_text(
    table: Table,
    mixes: Mixes,
    budget: Budget,
    nbytes: int,
    parameters: int,
    drafting: tuple[str, ...],
    diverge: Diverge,
    report: Report | None,
) -> Outcome:
    """Measure what a loss counts, choose by that, and take of this choice, of the one without the measurements and of
    `close` mixes the one whose predictions are best. Errors: as `solved` and `diverge`.
    """
    before = by_weights(table, mixes, budget, nbytes, parameters)
    trials = [_trial(options, drafting) for options in table if options[0].tried]
    counted = measured_weights(trials, diverge, report)
    table = tuple(
        tuple(msgspec.structs.replace(one, weight=counted.get(one.name, one.weight)) for one in options)
        for options in table
    )
    after = by_weights(table, mixes, budget, nbytes, parameters)
    candidates = {WITH_TEXT: after.picks, WITHOUT_TEXT: before.picks}
    candidates |= {name: mixes[name] for name in close(after.rivals, after.loss)}
    found = contest(table, candidates, diverge, report)
    winner = min(found, key=lambda name: found[name])
    return Outcome(
        table=table,
        solution=after.solution,
        picks=candidates[winner],
        rivals=tuple(msgspec.structs.replace(one, divergence=found.get(one.name)) for one in after.rivals),
        divergence=found[winner],
        winner=winner,
    )


def rivals_of(table: Table, mixes: Mixes, budget: Budget, nbytes: int) -> tuple[Rival, ...]:
    """Mixes that keep to the budget, which is `nbytes` for the tensors; those that lose least first."""
    size = _size(budget)
    found = []
    for name, picks in mixes.items():
        chosen = [options[pick] for options, pick in zip(table, picks, strict=True)]
        if sum(size(one) for one in chosen) <= nbytes:
            total = sum(one.nbytes for one in chosen)
            found.append(Rival(name=name, nbytes=total, loss=loss_of(table, picks)))
    return tuple(sorted(found, key=lambda one: one.loss))


def close(rivals: Iterable[Rival], loss: float) -> Iterator[str]:
    """Names of the mixes that may be as good as a choice that is expected to lose `loss`."""
    return (one.name for one in rivals if one.loss <= CLOSE * loss)


def loss_of(table: Table, picks: Picks) -> float:
    """What a choice loses, each tensor by its weight."""
    return sum(options[pick].loss * options[pick].weight for options, pick in zip(table, picks, strict=True))


def contest(
    table: Table,
    candidates: Mixes,
    diverge: Diverge,
    report: Report | None,
) -> dict[str, float]:
    """The divergence of each of several choices; equal ones are run once. Errors: as `diverge`."""
    found: dict[Picks, float] = {}
    for number, (name, picks) in enumerate(candidates.items()):
        if report is not None:
            report(f"predictions of {name}", number, len(candidates))
        if picks not in found:
            chosen = (options[pick] for options, pick in zip(table, picks, strict=True))
            found[picks] = diverge(f"all as in {name}", {one.name: one.qtype for one in chosen if one.tried})
    return {name: found[picks] for name, picks in candidates.items()}


def solved(
    table: Table, budget: Budget, nbytes: int, parameters: int, starts: Iterable[Sequence[int]] = ()
) -> Solution:
    """The best choice, none of `starts` being better; `nbytes` is the budget for tensors of `parameters` weights.

    Errors: UsageError for a budget below the smallest choice or above the largest, with both.
    """
    size = _size(budget)
    options = [[Option(nbytes=size(one), error=one.loss * one.weight) for one in tensor] for tensor in table]
    least, most = (sum(edge(option.nbytes for option in tensor) for tensor in options) for edge in (min, max))
    if not least <= nbytes <= most:
        extreme, other = ("less than the smallest", least) if nbytes < least else ("more than the largest", most)
        hint = f"between {_amount(least, parameters)} and {_amount(most, parameters)}"
        raise UsageError(
            f"--quant {budget.text} leaves {_amount(nbytes, parameters)} for the tensors, which is {extreme} choice "
            f"of types, {_amount(other, parameters)}",
            hint=hint + ("" if nbytes < least else "; --quant q8_0, bf16 or f32 make larger files"),
        )
    return solve(options, nbytes, starts)


def _trial(options: Sequence[Chosen], drafting: tuple[str, ...]) -> Trial:
    """The tensor in the smallest type that is tried of those with more than four bits, or in the largest."""
    parameters = prod(options[0].shape)
    enough = [one for one in options if 8 * one.nbytes > 4 * parameters] or options[-1:]
    one = min(enough, key=lambda one: one.nbytes)
    return Trial(
        name=one.name,
        qtype=one.qtype,
        loss=one.loss,
        weight=one.weight,
        drafting=one.name.startswith(drafting),
        parameters=parameters,
    )


def _size(budget: Budget) -> Callable[[Chosen], int]:
    return _padded if budget.kind == "size" else _plain


def _plain(one: Chosen) -> int:
    return one.nbytes


def _padded(one: Chosen) -> int:
    return padded(one.nbytes, DEFAULT_ALIGNMENT)


def _amount(nbytes: int, parameters: int) -> str:
    return f"{nbytes:,} bytes ({8 * nbytes / parameters:.2f} bits for each weight)"
