"""A gated delta net's mixer in one go: convolution, SiLU, norms, gates and the delta rule.

Alone they are a dozen ops of a few microseconds, in every layer of every token. Two phases: channels of the
convolution, beside the gates; then strips of states, as in `recurrent`, or whole heads, as in `pending`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.backends.cpu.kernels import functions, pending
from hf2q.backends.cpu.kernels.pending import HEAD, MOST, VALUES, Pending, pending_step
from hf2q.backends.cpu.kernels.recurrent import own, source, strip_step
from hf2q.backends.cpu.kernels.rowwise import root, squares
from hf2q.backends.cpu.native import peek
from hf2q.backends.cpu.team import Team, Work, Works, bits
from hf2q.backends.cpu.teamwork import DATA, MEMBERS, barrier, take
from hf2q.backends.cpu.tiles import place
from hf2q.simd import F32, INT, fma, inline, kernel, load, scratch, store, total

if TYPE_CHECKING:
    from hf2q.types import Shape

F, ONE = F32(16), F32(1)

STRIP = 256
"""Channels of a unit of the convolution, whole vectors of sixteen."""
SIDE = 4
"""Heads of a unit where updates wait: their states lie one after the other, and are asked for ahead."""
MOST_KEYS = 16
"""The largest Dk, in vectors."""

# arrays of a job, then sizes and bits of floats
OUT, X, WEIGHT, ALPHA, BETA, ROOM, STATES, GATES = 0, 1, 2, 3, 4, 5, 6, 7
BATCH, TOKENS, CHANNELS, TAPS, GROUPS, HEADS, KEYS, COLUMNS = 8, 9, 10, 11, 12, 13, 14, 15
EPS, SCALE, WAITING = 16, 17, 18


@inline
def one_at(a: int, at: int) -> float:
    result: float = total(load(ONE, a, at))
    return result


@inline
def convolve_strip(job: int, row: int, first: int, last: int) -> None:
    """Channels first to last of a row of the batch: y = SiLU(convolution) goes to the room; the state moves on."""
    tokens, taps, stride = peek(job, TOKENS), peek(job, TAPS), 4 * peek(job, CHANNELS)
    weight, inputs = peek(job, WEIGHT), peek(job, X) + row * tokens * stride
    state = peek(peek(peek(job, STATES), 3 * row), DATA)
    results = peek(job, ROOM) + row * tokens * stride
    for t in range(tokens):
        for c in range(first, last, 16):
            acc = F(0)
            for tap in range(taps):
                acc = fma(
                    load(F, source(inputs, state, t + tap - taps + 1, taps, stride), 4 * c),
                    load(F, weight, tap * stride + 4 * c),
                    acc,
                )
            store(results, t * stride + 4 * c, functions.silu(acc))
    for j in range(taps - 1):  # only now, since it was read until here; earlier rows go first
        at = source(inputs, state, tokens + j - taps + 1, taps, stride)
        for c in range(first, last, 16):
            store(state, j * stride + 4 * c, load(F, at, 4 * c))


@inline
def make_gates(job: int, row: int, gates: int) -> None:
    """For each token and head of a row of the batch e^decay and the strength of the update, two floats."""
    heads, a = peek(job, HEADS), peek(job, GATES)
    alpha, beta, values = peek(job, ALPHA), peek(job, BETA), scratch(F, 4)
    for t in range(row * peek(job, TOKENS), (row + 1) * peek(job, TOKENS)):
        for h in range(0, heads, 16):
            count = min(16, heads - h)
            for k in range(4):
                values[k] = F(0)
            for k in range(count):
                values[0, k] = one_at(a, 4 * (h + k))
                values[1, k] = one_at(a, 4 * (heads + h + k))
                values[2, k] = one_at(alpha, 4 * (t * heads + h + k))
                values[3, k] = one_at(beta, 4 * (t * heads + h + k))
            values[0] = functions.exp(values[0] * functions.softplus(values[2] + values[1]))
            values[3] = functions.sigmoid(values[3])
            for k in range(count):
                store(gates, 8 * (t * heads + h + k), ONE(values[0, k]))
                store(gates, 8 * (t * heads + h + k) + 4, ONE(values[3, k]))


@inline
def normal(x: int, out: int, size: int, eps: float, scale: float) -> None:
    """x / sqrt(Σ x² + eps) · scale."""
    factor = 1 / root(squares(x, size, 0.0) + eps)
    for k in range(0, size, 16):
        store(out, 4 * k, load(F, x, 4 * k) * factor * scale)


@kernel(INT, INT, INT)
def mix(job: int, member: int, team: int) -> None:
    batch, tokens, channels = peek(job, BATCH), peek(job, TOKENS), peek(job, CHANNELS)
    groups, heads, keys, values = peek(job, GROUPS), peek(job, HEADS), peek(job, KEYS), peek(job, COLUMNS)
    room, gates = peek(job, ROOM), peek(job, ROOM) + 4 * batch * tokens * channels
    pieces = (channels + STRIP - 1) // STRIP
    unit = take(team, 0)
    while unit < batch * (pieces + 1):
        row, piece = unit // (pieces + 1), unit % (pieces + 1)
        if piece == pieces:
            make_gates(job, row, gates)
        else:
            convolve_strip(job, row, piece * STRIP, min(piece * STRIP + STRIP, channels))
        unit = take(team, 0)
    barrier(team)
    waiting = peek(job, WAITING)  # then one token, of `VALUES` columns
    eps, scale, strips = one_at(job, 8 * EPS), one_at(job, 8 * SCALE), 1 if waiting else values // 32
    query, key = scratch(F, MOST_KEYS), scratch(F, MOST_KEYS)
    q, k = place(query), place(key)
    together = SIDE if waiting and batch * heads >= 2 * SIDE * peek(team, MEMBERS) else 1
    unit, left = take(team, 1) * together, together
    while unit < batch * heads * strips:
        row, h, strip = unit // (heads * strips), unit // strips % heads, unit % strips
        states = peek(job, STATES) + 24 * row
        s = peek(peek(states, 1), DATA) + 4 * (h * keys * values + 32 * strip)
        for t in range(row * tokens, (row + 1) * tokens):
            x = room + 4 * channels * t
            normal(x + 4 * keys * (h % groups), q, keys, eps, scale)
            normal(x + 4 * keys * (groups + h % groups), k, keys, eps, 1.0)
            v = x + 4 * (2 * keys * groups + values * h + 32 * strip)
            out = peek(job, OUT) + 4 * (values * (t * heads + h) + 32 * strip)
            gate = gates + 8 * (t * heads + h)
            if waiting:
                wait = peek(peek(states, 2), DATA) + 4 * h * (HEAD + MOST * (keys + VALUES))
                pending_step(s, wait, keys, k, q, v, out, one_at(gate, 0), one_at(gate, 4))
            else:
                strip_step(s, 4 * values, keys, k, q, v, out, one_at(gate, 0), one_at(gate, 4))
        unit, left = unit + 1, left - 1
        if left == 0:
            unit, left = take(team, 1) * together, together


class DeltaNet:
    """`mix` on arrays."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._works = Works()
        self._pending = Pending(team)
        self._held: dict[int, tuple[Any, Any, Any, Any, Any]] = {}

    @staticmethod
    def fits(channels: int, state: Any) -> bool:
        """Whether the sizes are what the kernel can do; state (H, Dk, Dv)."""
        _, keys, values = state.shape
        return bool(channels % 16 == 0 and keys % 16 == 0 and keys <= 16 * MOST_KEYS and values % 32 == 0)

    def held(self, weight: Any, a: Any, dt: Any) -> tuple[Any, Any]:
        """The convolution's weights (K, C), and a and dt in one array."""
        found = self._held.get(id(weight))
        if found is None:  # weights live as long as the model; the references keep the number from being used again
            both = np.concatenate([np.reshape(a, -1), np.reshape(dt, -1)]).astype(np.float32)
            found = self._held[id(weight)] = (weight, a, dt, np.ascontiguousarray(weight.T), both)
        return found[3:]

    @staticmethod
    def work(shape: Shape, taps: int, state: Shape, eps: float, *, waiting: bool) -> Work:
        """`mix` for x of that shape, so many taps, and states (H, Dk, Dv), with updates that wait or without."""
        batch, tokens, channels = shape
        heads, keys, values = state
        groups = (channels - heads * values) // (2 * keys)
        sizes = batch, tokens, channels, taps, groups, heads, keys, values, bits(eps), bits(keys**-0.5), waiting
        return Work(mix, sizes, shared=batch * tokens * heads * keys * values > 1 << 16)

    @staticmethod
    def waiting(states: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """States (conv, S, what waits) for the next token, where `pending` can do them; others as they are."""
        if not pending.fits(states[0][1]):
            return list(states)
        return [state if len(state) > 2 else (*state, pending.room(state[1])) for state in states]

    def ready(self, shape: Shape, states: Sequence[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], Any]:
        """States that `mix` can write to, for x of that shape, and the `id`s of their arrays (B, 3).

        Updates wait only where all states have room for them and one token comes; others are whole afterwards.
        """
        # those with room for updates were made, copied or restored here, and can be written to
        kept = [state if len(state) > 2 else tuple(map(own, state)) for state in states]
        if shape[1] == 1 and all(len(state) > 2 for state in kept):
            return kept, np.array([tuple(map(id, state)) for state in kept], np.int64)
        self._pending.settle(kept)
        return kept, np.array([(id(state[0]), id(state[1]), 0) for state in kept], np.int64)

    @staticmethod
    def room(shape: Shape, heads: int) -> int:
        """How many numbers `mix` needs between its phases."""
        batch, tokens, channels = shape
        return batch * tokens * (channels + 2 * heads)

    def __call__(
        self, x: Any, weight: Any, a: Any, dt: Any, alpha: Any, beta: Any, states: Sequence[Any], eps: float
    ) -> tuple[Any, list[Any]]:
        """See `hf2q.backends.ops.Ops.delta_net`."""
        taps, gates = self.held(weight, a, dt)
        x = np.ascontiguousarray(x, np.float32)
        alpha, beta = np.ascontiguousarray(alpha, np.float32), np.ascontiguousarray(beta, np.float32)
        kept, places = self.ready(x.shape, states)
        shape, waiting = kept[0][1].shape, bool(places[0, 2])
        key = x.shape, weight.shape, shape, eps, waiting
        work = self._works.get(key)
        if work is None:
            work = self._works.keep(key, self.work(x.shape, weight.shape[1], shape, eps, waiting=waiting))
        out = np.empty((*x.shape[:2], shape[0], shape[2]), np.float32)
        room = np.empty(self.room(x.shape, shape[0]), np.float32)
        self._team.apply(work, id(out), id(x), id(taps), id(alpha), id(beta), id(room), id(places), id(gates))
        return out, kept
