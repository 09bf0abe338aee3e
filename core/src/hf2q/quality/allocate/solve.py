"""One option for each tensor, so that the sum of errors is least and the sum of bytes within a budget.

The multiple-choice knapsack problem. First greedy along the lower convex hull of each tensor's (bytes, error), which
gives a good answer and, by the slope where the budget ends, a bound for every partial answer (Lagrangian relaxation).
Then all partial answers are followed, tensor by tensor, but those that another one beats in both sums and those whose
bound says that they cannot end below the best known. What remains is few, and the answer is exact; if more than `MOST`
remain, the most promising are kept, and `Solution.bound` says how far from the best it can be at most.

Source of the method: Kellerer, Pferschy, Pisinger, Knapsack Problems (2004), chapter 11.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf2q.errors import UsageError
from hf2q.types import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 5000
"""Partial answers that are followed at a time."""
SLACK = 1e-9
"""Share by which sums of floats in another order may differ."""


class Option(Record, frozen=True, kw_only=True):
    """What a tensor may be: its bytes, and the error that goes with them."""

    nbytes: int
    error: float


class Solution(Record, frozen=True, kw_only=True):
    """The place of the option taken for each tensor, and their sums.

    bound  no choice within the budget has a smaller error;  exact  there is none with a smaller error than this one
    """

    picks: tuple[int, ...]
    nbytes: int
    error: float
    bound: float
    exact: bool


class Step(Record, frozen=True, kw_only=True):
    """Along a tensor's hull, from one option to the next larger one; `slope` is error saved for each byte more."""

    tensor: int
    pick: int
    more: int
    saved: float

    @property
    def slope(self) -> float:
        return self.saved / self.more


def solve(table: Sequence[Sequence[Option]], budget: int, starts: Iterable[Sequence[int]] = ()) -> Solution:
    """The best choice within `budget` bytes; none of `starts`, choices as `Solution.picks`, is better.

    Errors: UsageError when the smallest options together are over the budget; ValueError for a tensor without options,
    sizes and errors that are negative or no numbers.
    """
    for options in table:
        if not options or any(o.nbytes < 0 or not np.isfinite(o.error) or o.error < 0 for o in options):
            raise ValueError("expected one option or more for each tensor, with sizes and errors that are not negative")
    hulls = [hull(options) for options in table]
    least = sum(options[places[0]].nbytes for options, places in zip(table, hulls, strict=True))
    if least > budget:
        raise UsageError(f"{budget:,} bytes are less than the smallest choice of types, which has {least:,}")
    picks, price = _greedy(table, hulls, budget)
    within = (list(one) for one in starts if _nbytes(table, one) <= budget)
    picks = min([picks, *within], key=lambda one: _error(table, one))
    error = _error(table, picks)
    best, exact = _followed(table, budget, price, error * (1 + SLACK))
    if best is not None and _error(table, best) < error:
        picks, error = best, _error(table, best)
    bound = sum(min(o.error + price * o.nbytes for o in options) for options in table) - price * budget
    return Solution(
        picks=tuple(picks),
        nbytes=_nbytes(table, picks),
        error=error,
        bound=error if exact else min(error, max(0.0, bound)),
        exact=exact,
    )


def hull(options: Sequence[Option]) -> list[int]:
    """Places of the options on the lower convex hull, the smallest first: each step saves less for each byte."""
    order = sorted(range(len(options)), key=lambda place: (options[place].nbytes, options[place].error))
    found: list[int] = []
    for place in order:
        if found and options[place].error >= options[found[-1]].error:
            continue
        while len(found) > 1 and _slope(options, found[-2], found[-1]) <= _slope(options, found[-2], place):
            found.pop()
        found.append(place)
    return found


def _slope(options: Sequence[Option], start: int, stop: int) -> float:
    return (options[start].error - options[stop].error) / (options[stop].nbytes - options[start].nbytes)


def _nbytes(table: Sequence[Sequence[Option]], picks: Sequence[int]) -> int:
    return sum(options[pick].nbytes for options, pick in zip(table, picks, strict=True))


def _error(table: Sequence[Sequence[Option]], picks: Sequence[int]) -> float:
    return sum(options[pick].error for options, pick in zip(table, picks, strict=True))


def _greedy(table: Sequence[Sequence[Option]], hulls: Sequence[Sequence[int]], budget: int) -> tuple[list[int], float]:
    """Options reached by the steepest steps that fit, and the slope of the first that did not, 0 when all did."""
    picks = [places[0] for places in hulls]
    left = budget - _nbytes(table, picks)
    steps = [
        Step(
            tensor=tensor,
            pick=stop,
            more=table[tensor][stop].nbytes - table[tensor][start].nbytes,
            saved=table[tensor][start].error - table[tensor][stop].error,
        )
        for tensor, places in enumerate(hulls)
        for start, stop in itertools.pairwise(places)
    ]
    price = 0.0
    stuck: set[int] = set()
    for step in sorted(steps, key=lambda step: -step.slope):
        if step.tensor in stuck:
            continue
        if step.more <= left:
            picks[step.tensor] = step.pick
            left -= step.more
        else:
            price = price or step.slope
            stuck.add(step.tensor)
    return picks, price


def _followed(
    table: Sequence[Sequence[Option]], budget: int, price: float, best: float
) -> tuple[list[int] | None, bool]:
    """The best choice among all whose error may be at most `best`, None when there is none; and whether all were
    followed."""
    smallest = [min(o.nbytes for o in options) for options in table]
    cheapest = [min(o.error + price * o.nbytes for o in options) for options in table]
    after_bytes = np.array([*np.cumsum(smallest[::-1])[::-1], 0], np.int64)
    after_bound = np.array([*np.cumsum(cheapest[::-1])[::-1], 0.0], np.float64)
    allowed = best + price * budget * (1 + SLACK)
    used, error = np.zeros(1, np.int64), np.zeros(1, np.float64)
    trail: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    exact = True
    for tensor, options in enumerate(table):
        more = np.array([o.nbytes for o in options], np.int64)
        worse = np.array([o.error for o in options], np.float64)
        new_used, new_error = (used[:, None] + more).ravel(), (error[:, None] + worse).ravel()
        reached = new_error + price * new_used + after_bound[tensor + 1]
        alive = np.flatnonzero((new_used + after_bytes[tensor + 1] <= budget) & (reached <= allowed))
        alive = alive[np.lexsort((new_error[alive], new_used[alive]))]
        before = np.concatenate(([np.inf], np.minimum.accumulate(new_error[alive])[:-1])) if len(alive) else alive
        alive = alive[new_error[alive] < before]
        if len(alive) > MOST:
            exact = False
            alive = np.sort(alive[np.argpartition(reached[alive], MOST)[:MOST]])
        if not len(alive):
            return None, exact
        trail.append((alive // len(options), alive % len(options)))
        used, error = new_used[alive], new_error[alive]
    place = int(error.argmin())
    picks: list[int] = []
    for parents, taken in reversed(trail):
        picks.append(int(taken[place]))
        place = int(parents[place])
    return picks[::-1], exact
