"""Several kernels one after the other in one start of the team, for layers of a few tokens.

Between two of them the members meet at a barrier, which takes less than a microsecond; coming back to Python takes
some twenty, since streaming through weights has thrown its code out of the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hf2q.backends.cpu.memory import address, aligned
from hf2q.backends.cpu.native import atomic_get, atomic_set, invoke, peek, poke
from hf2q.backends.cpu.team import Team, Work
from hf2q.backends.cpu.teamwork import (
    ARRAYS,
    ARRIVED,
    COUNTER_COUNT,
    COUNTERS,
    FAILED,
    MEMBERS,
    WORDS,
    barrier,
)
from hf2q.simd import INT, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.backends.cpu.linear import Linear

KEPT = 4096
"""Chains kept."""
MOST_ROWS = 32
"""Tokens for which a chain is made, whatever their number: there is one for each number and layer."""
SLICE = 128
"""Of more tokens, so many go through a layer at a time, and whole slices through a chain too: what its parts hand on
stays in the caches, and takes a quarter of the memory that 512 tokens would."""

# sizes of the job of `chain`: stages and patches, then so many words for each
STAGES, PATCHES, FIRST = ARRAYS, ARRAYS + 1, ARRAYS + 2
FUNCTION, JOB, BLOCK, STAGE_WORDS = 0, 1, 2, 3
PLACE, ARRAY, PATCH_WORDS = 0, 1, 2


def chained(rows: int) -> bool:
    """Whether there are chains for so many tokens."""
    return rows <= MOST_ROWS or rows == SLICE


def slices(batch: int, tokens: int) -> list[slice]:
    """The tokens (of each row of the batch) that go through a layer together."""
    each = SLICE // batch if batch * tokens > MOST_ROWS and batch <= SLICE else tokens
    return [slice(start, min(start + each, tokens)) for start in range(0, tokens, each)]


class Patch(NamedTuple):
    """Word `word` of the job of stage `stage` is where the data of array `array` of the chain lies."""

    stage: int
    word: int
    array: int


@kernel(INT, INT, INT)
def chain(job: int, member: int, team: int) -> None:
    stages, patches = peek(job, STAGES), peek(job, PATCHES)
    stage = job + 8 * FIRST
    patch = stage + 8 * STAGE_WORDS * stages
    for p in range(patches):  # all members write the same
        poke(peek(patch, PATCH_WORDS * p + PLACE), 0, peek(job, peek(patch, PATCH_WORDS * p + ARRAY)))
    for _ in range(stages):
        block = peek(stage, BLOCK)
        # a block of one member is for the calling thread alone
        mine = member == 0 or peek(block, MEMBERS) > 1
        if mine and invoke(peek(stage, FUNCTION), peek(stage, JOB), member, block):
            atomic_set(block, FAILED, 1)  # whoever waits inside the stage
            raise RuntimeError("a stage failed")
        barrier(team)
        if atomic_get(team, FAILED):
            return
        stage += 8 * STAGE_WORDS
    if member == 0:
        for s in range(stages):
            block = peek(job, FIRST + STAGE_WORDS * s + BLOCK)
            poke(block, ARRIVED, 0)
            for counter in range(COUNTER_COUNT):
                poke(block, COUNTERS + 8 * counter, 0)


class Chain:
    """Prepared works that `run` starts together on arrays; `alive` is what else their jobs point to."""

    def __init__(self, team: Team, works: Sequence[Work], patches: Sequence[Patch], alive: Any) -> None:
        self._team = team
        self._alive = works, alive
        self._blocks: NDArray[np.int64] = aligned(8 * 64 * -(-WORDS // 64) * len(works)).view(np.int64)
        self._blocks = self._blocks.reshape(len(works), -1)
        sizes = [len(works), len(patches)]
        for work, block in zip(works, self._blocks, strict=True):
            block[MEMBERS] = team.threads if work.shared else 1
            sizes += [work.function, work.address, address(block)]
        for patch in patches:
            sizes += [works[patch.stage].address + 8 * patch.word, patch.array]
        self._work = Work(chain, sizes, shared=True)

    def run(self, *arrays: int) -> None:
        """On arrays given by their `id`. Errors: RuntimeError when a kernel failed."""
        try:
            self._team.apply(self._work, *arrays)
        except RuntimeError:
            members = self._blocks[:, MEMBERS].copy()
            self._blocks[:] = 0
            self._blocks[:, MEMBERS] = members
            raise


class Needs(NamedTuple):
    """What a chain needs room for: rows and columns of its products' activations, and float32 numbers that its stages
    hand on.
    """

    rows: int
    columns: int
    sizes: Sequence[int]


class Chains(dict[Any, tuple[Chain, int]]):
    """Chains by whatever they depend on, made anew when the `Linear` that prepared their products moved its buffers."""

    def of(self, key: Any, linear: Linear, needs: Callable[[], Needs], make: Callable[[list[int]], Chain]) -> Chain:
        """The chain of a key. `make` gets the places of what `needs` asks for. Under the lock of `linear`."""
        found = self.get(key)
        if found is None or found[1] != linear.generation or linear.in_file:
            if len(self) >= KEPT:
                self.clear()
            rows, columns, sizes = needs()
            ends = list(accumulate((-(-size // 16) * 16 for size in sizes), initial=0))
            linear.reserve(rows, columns, shared=ends[-1])  # first, since products and stages know where it is
            places = [address(linear.shared) + 4 * end for end in ends[:-1]]
            before = linear.generation
            chain = make(places)
            if linear.generation != before:  # some of its products were prepared before weights moved
                chain = make(places)
            found = self[key] = chain, linear.generation
        return found[0]
