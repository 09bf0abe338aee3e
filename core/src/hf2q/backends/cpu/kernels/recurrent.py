"""The recurrent layers of hybrids: the short convolution, and the gated delta rule.

The delta rule treats every column of a state by itself (each column is one value channel), so a state is cut into
strips of 32 columns: 16 KB for 128 keys, which stay in the first-level cache over all tokens of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from hf2q.backends.cpu.ahead import prefetch_far
from hf2q.backends.cpu.kernels import functions
from hf2q.backends.cpu.native import peek
from hf2q.backends.cpu.team import Team, Work, Works
from hf2q.backends.cpu.teamwork import DATA, take
from hf2q.simd import F32, INT, Vector, fma, inline, kernel, load, prefetch, spread, store, total

F, ONE = F32(16), F32(1)

STRIP = 256
"""Channels of a unit of the convolution."""
AHEAD = 12
"""Rows of a state that are asked for early: a strip's rows are too far apart for the processor to guess."""
HEAD_AHEAD = 4096
"""How far ahead a state that is read in order is asked for, in bytes."""
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


Four: TypeAlias = tuple[Any, Any, Any, Any]


@inline
def gathered(p: int, at: int, w: Vector, sums: Four) -> Four:
    """Sums of 64 columns, and with them a row of the state times a number."""
    a, b, c, d = sums
    return (
        fma(load(F, p, at), w, a),
        fma(load(F, p, at + 64), w, b),
        fma(load(F, p, at + 128), w, c),
        fma(load(F, p, at + 192), w, d),
    )


@inline
def update(v: int, at: int, even: Four, odd: Four, gate: float, strength: float) -> Four:
    """What 64 columns of the state change by, times the key: from the sums over its even and its odd rows."""
    return (
        (load(F, v, at) - (even[0] + odd[0]) * gate) * strength,
        (load(F, v, at + 64) - (even[1] + odd[1]) * gate) * strength,
        (load(F, v, at + 128) - (even[2] + odd[2]) * gate) * strength,
        (load(F, v, at + 192) - (even[3] + odd[3]) * gate) * strength,
    )


@inline
def moved(p: int, at: int, w: Vector, x: Vector, change: Four, gate: float, sums: Four) -> Four:
    """Move 64 columns of a row of the state on, and take them, times x, into the sums."""
    e = fma(change[0], w, load(F, p, at) * gate)
    f = fma(change[1], w, load(F, p, at + 64) * gate)
    g = fma(change[2], w, load(F, p, at + 128) * gate)
    h = fma(change[3], w, load(F, p, at + 192) * gate)
    store(p, at, e)
    store(p, at + 64, f)
    store(p, at + 128, g)
    store(p, at + 192, h)
    return fma(e, x, sums[0]), fma(f, x, sums[1]), fma(g, x, sums[2]), fma(h, x, sums[3])


@inline
def put_four(out: int, at: int, sums: Four) -> None:
    store(out, at, sums[0])
    store(out, at + 64, sums[1])
    store(out, at + 128, sums[2])
    store(out, at + 192, sums[3])


@inline
def zeros() -> Four:
    return F(0), F(0), F(0), F(0)


@inline
def head_step(s: int, keys: int, k: int, q: int, v: int, out: int, gate: float, strength: float) -> None:
    """`strip_step` for all 128 columns at once: the same numbers.

    A state is read from memory in order, and written while it is in the second-level cache: what one token wants.
    Strips want less time where they stay in the first level over several tokens.
    """
    a, b, c, d = zeros(), zeros(), zeros(), zeros()
    p = s
    for i in range(0, keys, 2):
        w, x = spread(F, k, 4 * i), spread(F, k, 4 * i + 4)
        for line in range(0, 1024, 64):
            prefetch_far(p, HEAD_AHEAD + line)
        a, b = gathered(p, 0, w, a), gathered(p, 256, w, b)
        c, d = gathered(p, 512, x, c), gathered(p, 768, x, d)
        p += 1024
    a, b = update(v, 0, a, c, gate, strength), update(v, 256, b, d, gate, strength)
    y, z = zeros(), zeros()
    p = s
    for i in range(keys):
        w, x = spread(F, k, 4 * i), spread(F, q, 4 * i)
        y, z = moved(p, 0, w, x, a, gate, y), moved(p, 256, w, x, b, gate, z)
        p += 512
    put_four(out, 0, y)
    put_four(out, 256, z)


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
    usable = state.flags.c_contiguous and state.flags.writeable
    return state if usable else np.array(state, order="C")
