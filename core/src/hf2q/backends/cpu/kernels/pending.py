"""The delta rule for one token, without writing the state each time.

Decoding reads a state of 64 KB for each head and token, and would write as much: with several sequences at once, more
traffic than what all weights take. But what a token adds to a state is an outer product, k ⊗ e, and what the gate does
to it is a factor. So the last few pairs wait beside the state, and are folded into it together:

    S_now = g S + Σ c_i k_i ⊗ e_i        g, c_i: products of the gates since

A step needs only S_nowᵀ k and S_nowᵀ q. It reads S once for both, and adds what the pairs give from a few dot products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from hf2q.backends.cpu.ahead import prefetch_far
from hf2q.backends.cpu.native import peek
from hf2q.backends.cpu.team import Team, Work, Works
from hf2q.backends.cpu.teamwork import DATA, take
from hf2q.simd import F32, INT, Vector, fma, inline, kernel, load, spread, store, total

F, ONE = F32(16), F32(1)

MOST = 8
"""Pairs that may wait for one head. A fold writes all of a state: with twice as many, reading the pairs takes longer
than what is saved by folding less often."""
VALUES = 128
"""The width of a state for which this is: two groups of four vectors."""
HEAD = 16
"""Numbers before the pairs of a head: how many wait, g, and c_i from C on."""
C = 2
HEAD_AHEAD = 4096
"""How far ahead a state, which is read in order, is asked for, in bytes."""

Four: TypeAlias = tuple[Any, Any, Any, Any]


def fits(state: Any) -> bool:
    """Whether updates of a state (H, Dk, Dv) may wait."""
    return bool(state.shape[2] == VALUES and state.shape[1] % 16 == 0)


def room(state: Any) -> Any:
    """An array for what waits beside a state (H, Dk, Dv): nothing yet."""
    heads, keys, values = state.shape
    return np.zeros((heads, HEAD + MOST * (keys + values)), np.float32)


@inline
def number(a: int, at: int) -> float:
    result: float = total(load(ONE, a, at))
    return result


@inline
def four(p: int, at: int) -> Four:
    return load(F, p, at), load(F, p, at + 64), load(F, p, at + 128), load(F, p, at + 192)


@inline
def add(x: Four, w: Vector, sums: Four) -> Four:
    return fma(x[0], w, sums[0]), fma(x[1], w, sums[1]), fma(x[2], w, sums[2]), fma(x[3], w, sums[3])


@inline
def times(x: Four, w: float) -> Four:
    return x[0] * w, x[1] * w, x[2] * w, x[3] * w


@inline
def put(p: int, at: int, x: Four) -> None:
    store(p, at, x[0])
    store(p, at + 64, x[1])
    store(p, at + 128, x[2])
    store(p, at + 192, x[3])


@inline
def zeros() -> Four:
    return F(0), F(0), F(0), F(0)


@inline
def ask(p: int) -> None:
    """A row of a state ahead of address p, into the second-level cache."""
    for line in range(0, 4 * VALUES, 64):
        prefetch_far(p, HEAD_AHEAD + line)


@inline
def dot(x: int, y: int, size: int) -> float:
    acc = F(0)
    for i in range(0, 4 * size, 64):
        acc = fma(load(F, x, i), load(F, y, i), acc)
    result: float = total(acc)
    return result


@inline
def fold(s: int, wait: int, keys: int, count: int) -> None:
    """Put what waits for a head into its state: none waits any more."""
    step = 4 * (keys + VALUES)
    g = number(wait, 4)
    p = s
    for i in range(keys):
        ask(p)
        a, b = times(four(p, 0), g), times(four(p, 256), g)
        pair = wait + 4 * HEAD
        for j in range(count):
            w = spread(F, pair, 4 * i) * spread(F, wait, 4 * (C + j))
            e = pair + 4 * keys
            a, b = add(four(e, 0), w, a), add(four(e, 256), w, b)
            pair += step
        put(p, 0, a)
        put(p, 256, b)
        p += 4 * VALUES
    store(wait, 0, ONE(0))


@inline
def pending_step(s: int, wait: int, keys: int, k: int, q: int, v: int, out: int, gate: float, strength: float) -> None:
    """One token for a head with its state at s and what waits for that at `wait`."""
    count = int(number(wait, 0))
    if count == MOST:
        fold(s, wait, keys, count)
        count = 0
    g = gate if count == 0 else number(wait, 4) * gate
    a, b, y, z = zeros(), zeros(), zeros(), zeros()  # Sᵀk and Sᵀq, half of the columns each
    p = s
    for i in range(keys):
        w, x = spread(F, k, 4 * i), spread(F, q, 4 * i)
        ask(p)
        c, d = four(p, 0), four(p, 256)
        a, b, y, z = add(c, w, a), add(d, w, b), add(c, x, y), add(d, x, z)
        p += 4 * VALUES
    a, b, y, z = times(a, g), times(b, g), times(y, g), times(z, g)
    step, pair = 4 * (keys + VALUES), wait + 4 * HEAD
    for j in range(count):
        c_j = number(wait, 4 * (C + j)) * gate
        store(wait, 4 * (C + j), ONE(c_j))
        w, x = F(dot(pair, k, keys) * c_j), F(dot(pair, q, keys) * c_j)
        c, d = four(pair, 4 * keys), four(pair, 4 * keys + 256)
        a, b, y, z = add(c, w, a), add(d, w, b), add(c, x, y), add(d, x, z)
        pair += step
    c, d = error(four(v, 0), a, strength), error(four(v, 256), b, strength)
    w = F(dot(k, q, keys))
    put(out, 0, add(c, w, y))
    put(out, 256, add(d, w, z))
    for i in range(0, 4 * keys, 64):
        store(pair, i, load(F, k, i))
    put(pair, 4 * keys, c)
    put(pair, 4 * keys + 256, d)
    store(wait, 4 * (C + count), ONE(1))
    store(wait, 4, ONE(g))
    store(wait, 0, ONE(count + 1))


@inline
def error(v: Four, held: Four, strength: float) -> Four:
    """What a state gives for a key is `held`; it should give v."""
    return times((v[0] - held[0], v[1] - held[1], v[2] - held[2], v[3] - held[3]), strength)


@kernel(INT, INT, INT)
def settle(job: int, member: int, team: int) -> None:
    """Fold what waits into states. Arrays: 0 `id`s of the states and of what waits. Sizes: 8 B, 9 H, 10 Dk."""
    places, batch, heads, keys = peek(job, 0), peek(job, 8), peek(job, 9), peek(job, 10)
    unit = take(team, 0)
    while unit < batch * heads:
        row, h = unit // heads, unit % heads
        s = peek(peek(places, 2 * row), DATA) + 4 * h * keys * VALUES
        wait = peek(peek(places, 2 * row + 1), DATA) + 4 * h * (HEAD + MOST * (keys + VALUES))
        count = int(number(wait, 0))
        if count:
            fold(s, wait, keys, count)
        unit = take(team, 0)


class Pending:
    """`settle` on arrays."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._works = Works()

    def settle(self, states: Sequence[tuple[Any, ...]]) -> None:
        """Make states (conv, S, what waits) whole; those without the last are."""
        pairs = [rest for _, *rest in states if len(rest) > 1 and rest[1][0, 0]]  # all heads count alike
        if not pairs:
            return
        shape = len(pairs), *pairs[0][0].shape[:2]
        work = self._works.get(shape)
        if work is None:
            work = self._works.keep(shape, Work(settle, shape, shared=True))
        places = np.array([[id(array) for array in pair] for pair in pairs], np.int64)
        self._team.apply(work, id(places))
