"""The recurrent layers of hybrids: the short convolution, and the gated delta rule.

The delta rule treats every column of a state by itself (each column is one value channel), so a state is cut into
strips of 32 columns: 16 KB for 128 keys, which stay in the first-level cache over all tokens of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hf2q.backends.cpu.kernels import functions
from hf2q.backends.cpu.native import peek
from hf2q.backends.cpu.team import Team, Work, Works
from hf2q.backends.cpu.teamwork import DATA, take
from hf2q.simd import F32, INT, fma, inline, kernel, load, prefetch, spread, store, total

F, ONE = F32(16), F32(1)

STRIP = 256
"""Channels of a unit of the convolution."""
AHEAD = 12
"""Rows of a state that are asked for early: a strip's rows are too far apart for the processor to guess."""
SMALL = 1 << 16
"""Multiplications that are not worth waking a team for."""


@inline
def exp_one(x: float) -> float:
    result: float = total(functions.exp(F(x))) / 16
    return result


@inline
def strip_step(s: int, step: int, keys: int, k: int, q: int, v: int, out: int, gate: float, strength: float) -> None:
    """One token for 32 columns of a state at address s, whose rows are `step` bytes apart."""
    a, b = F(0), F(0)
    c, d = F(0), F(0)
    p = s
    for i in range(0, keys, 2):
        w, x = spread(F, k, 4 * i), spread(F, k, 4 * i + 4)
        a, b = fma(load(F, p, 0), w, a), fma(load(F, p, 64), w, b)
        c, d = fma(load(F, p, step), x, c), fma(load(F, p, step + 64), x, d)
        prefetch(p, AHEAD * step)
        prefetch(p, AHEAD * step + 64)
        prefetch(p, (AHEAD + 1) * step)
        prefetch(p, (AHEAD + 1) * step + 64)
        p += 2 * step
    a = (load(F, v, 0) - (a + c) * gate) * strength
    b = (load(F, v, 64) - (b + d) * gate) * strength
    y, z = F(0), F(0)
    p = s
    for i in range(keys):
        w, x = spread(F, k, 4 * i), spread(F, q, 4 * i)
        e = fma(a, w, load(F, p, 0) * gate)
        f = fma(b, w, load(F, p, 64) * gate)
        store(p, 0, e)
        store(p, 64, f)
        y, z = fma(e, x, y), fma(f, x, z)
        p += step
    store(out, 0, y)
    store(out, 64, z)


@kernel(INT, INT, INT)
def delta(job: int, member: int, team: int) -> None:
    """Arrays: 0 out, 1 q, 2 k, 3 v, 4 decay, 5 beta, 6 `id`s of the states.

    Sizes: 8 B, 9 T, 10 G, 11 H, 12 Dk, 13 Dv.
    """
    out, q, k, v, decay, beta = peek(job, 0), peek(job, 1), peek(job, 2), peek(job, 3), peek(job, 4), peek(job, 5)
    states, batch, tokens, groups, heads = peek(job, 6), peek(job, 8), peek(job, 9), peek(job, 10), peek(job, 11)
    keys, values = peek(job, 12), peek(job, 13)
    strips = values // 32
    unit = take(team, 0)
    while unit < batch * heads * strips:
        row, h, strip = unit // (heads * strips), unit // strips % heads, unit % strips
        s = peek(peek(states, row), DATA) + 4 * (h * keys * values + 32 * strip)
        for t in range(tokens):
            at = row * tokens + t
            kt = k + 4 * keys * (at * groups + h % groups)
            qt = q + 4 * keys * (at * groups + h % groups)
            vt = 4 * (values * (at * heads + h) + 32 * strip)
            gate = exp_one(total(load(ONE, decay, 4 * (at * heads + h))))
            strength = total(load(ONE, beta, 4 * (at * heads + h)))
            strip_step(s, 4 * values, keys, kt, qt, v + vt, out + vt, gate, strength)
        unit = take(team, 0)


@inline
def source(x: int, state: int, t: int, taps: int, stride: int) -> int:
    """Where the inputs of position `t`, counted from the first of this call, lie; before it they are in the state."""
    return x + t * stride if t >= 0 else state + (t + taps - 1) * stride


@kernel(INT, INT, INT)
def convolve(job: int, member: int, team: int) -> None:
    """Arrays: 0 out, 1 x, 2 weights (K, C), 3 `id`s of the states. Sizes: 8 B, 9 T, 10 C, 11 K."""
    out, x, weight, states = peek(job, 0), peek(job, 1), peek(job, 2), peek(job, 3)
    batch, tokens, channels, taps = peek(job, 8), peek(job, 9), peek(job, 10), peek(job, 11)
    strips = (channels + STRIP - 1) // STRIP
    stride = 4 * channels
    unit = take(team, 0)
    while unit < batch * strips:
        row, first = unit // strips, unit % strips * STRIP
        last = min(first + STRIP, channels)
        inputs, state = x + row * tokens * stride, peek(peek(states, row), DATA)
        results = out + row * tokens * stride
        for t in range(tokens):
            c = first
            while c + 16 <= last:
                acc = F(0)
                for tap in range(taps):
                    place = source(inputs, state, t + tap - taps + 1, taps, stride)
                    acc = fma(load(F, place, 4 * c), load(F, weight, tap * stride + 4 * c), acc)
                store(results, t * stride + 4 * c, acc)
                c += 16
            while c < last:
                one = ONE(0)
                for tap in range(taps):
                    place = source(inputs, state, t + tap - taps + 1, taps, stride)
                    one = fma(load(ONE, place, 4 * c), load(ONE, weight, tap * stride + 4 * c), one)
                store(results, t * stride + 4 * c, one)
                c += 1
        for j in range(taps - 1):  # the state after: only now, since it was read until here; earlier rows go first
            place = source(inputs, state, tokens + j - taps + 1, taps, stride)
            c = first
            while c + 16 <= last:
                store(state, j * stride + 4 * c, load(F, place, 4 * c))
                c += 16
            while c < last:
                store(state, j * stride + 4 * c, load(ONE, place, 4 * c))
                c += 1
        unit = take(team, 0)


class Recurrent:
    """The kernels above on arrays."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._works = Works()
        self._turned: dict[int, tuple[Any, Any]] = {}

    def conv1d_causal(self, x: Any, weight: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        """See `hf2q.backends.ops.Ops.conv1d_causal`."""
        held = self._turned.get(id(weight))
        if held is None:  # weights live as long as the model; the reference keeps the number from being used again
            held = self._turned[id(weight)] = (weight, np.ascontiguousarray(weight.T))
        x = np.ascontiguousarray(x, np.float32)
        out = np.empty(x.shape, np.float32)
        kept = [own(state) for state in states]
        key = "conv", x.shape, weight.shape
        work = self._works.get(key)
        if work is None:
            sizes = *x.shape, weight.shape[1]
            work = self._works.keep(key, Work(convolve, sizes, shared=x.size * weight.shape[1] > SMALL))
        places = np.array([id(state) for state in kept], np.int64)
        self._team.apply(work, id(out), id(x), id(held[1]), id(places))
        return out, kept

    def gated_delta(
        self, q: Any, k: Any, v: Any, decay: Any, beta: Any, states: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        """See `hf2q.backends.ops.Ops.gated_delta`. Dk must be even and Dv a multiple of 32."""
        q, k, v, decay, beta = (np.ascontiguousarray(a, np.float32) for a in (q, k, v, decay, beta))
        out = np.empty(v.shape, np.float32)
        kept = [own(state) for state in states]
        key = "delta", q.shape, v.shape
        work = self._works.get(key)
        if work is None:
            sizes = *q.shape[:3], v.shape[2], q.shape[3], v.shape[3]
            work = self._works.keep(key, Work(delta, sizes, shared=v.size * q.shape[3] > SMALL))
        places = np.array([id(state) for state in kept], np.int64)
        self._team.apply(work, id(out), id(q), id(k), id(v), id(decay), id(beta), id(places))
        return out, kept


def own(state: Any) -> Any:
    """The state itself where kernels can write to it."""
    return state if state.flags.carray else np.array(state, order="C")
