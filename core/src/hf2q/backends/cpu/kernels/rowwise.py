"""Kernels over rows: norms along the last axis, and rotary positions.

Arrays of a norm's job: 0 results, 1 operand, 2 weights or none, 3 bias or none. Its sizes: 8 rows, 9 columns,
10 the bits of a float32 epsilon, 11 rows in a unit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hf2q.backends.cpu.kernels.functions import silu
from hf2q.backends.cpu.native import peek
from hf2q.backends.cpu.team import Team, Work, Works, bits
from hf2q.backends.cpu.teamwork import take
from hf2q.simd import F32, INT, Vector, fma, inline, kernel, load, sqrt, store, total

F, ONE = F32(16), F32(1)

UNIT = 1 << 13
"""Numbers in a unit: about 10 µs of work."""

ROWS, COLUMNS, EPS, EACH = 8, 9, 10, 11


@inline
def squares(x: int, columns: int, mean: float) -> float:
    """The sum of (x - mean)²."""
    acc, one, m = F(0), ONE(0), F(mean)
    k = 0
    while k + 16 <= columns:
        v = load(F, x, 4 * k) - m
        acc = fma(v, v, acc)
        k += 16
    while k < columns:
        u = load(ONE, x, 4 * k) - ONE(mean)
        one = fma(u, u, one)
        k += 1
    result: float = total(acc) + total(one)
    return result


@inline
def summed(x: int, columns: int) -> float:
    acc, one = F(0), ONE(0)
    k = 0
    while k + 16 <= columns:
        acc = acc + load(F, x, 4 * k)
        k += 16
    while k < columns:
        one = one + load(ONE, x, 4 * k)
        k += 1
    result: float = total(acc) + total(one)
    return result


@inline
def scaled(vec: Vector, x: int, out: int, at: int, weight: int, bias: int, mean: float, factor: float) -> None:
    v = (load(vec, x, at) - mean) * factor
    if weight:
        v = v * load(vec, weight, at)
    if bias:
        v = v + load(vec, bias, at)
    store(out, at, v)


@inline
def put_row(x: int, out: int, columns: int, weight: int, bias: int, mean: float, factor: float) -> None:
    k = 0
    while k + 16 <= columns:
        scaled(F, x, out, 4 * k, weight, bias, mean, factor)
        k += 16
    while k < columns:
        scaled(ONE, x, out, 4 * k, weight, bias, mean, factor)
        k += 1


@inline
def root(x: float) -> float:
    result: float = total(sqrt(ONE(x)))
    return result


@kernel(INT, INT, INT)
def rms_rows(job: int, member: int, team: int) -> None:
    out, x, weight, rows, columns, each = (
        peek(job, 0),
        peek(job, 1),
        peek(job, 2),
        peek(job, ROWS),
        peek(job, COLUMNS),
        peek(job, EACH),
    )
    eps = total(load(ONE, job, 8 * EPS))
    start = take(team, 0) * each
    while start < rows:
        for r in range(start, min(rows, start + each)):
            at = 4 * columns * r
            factor = 1 / root(squares(x + at, columns, 0.0) / columns + eps)
            put_row(x + at, out + at, columns, weight, 0, 0.0, factor)
        start = take(team, 0) * each


@kernel(INT, INT, INT)
def gated_rows(job: int, member: int, team: int) -> None:
    """rms_rows times SiLU of a gate, array 3."""
    out, x, weight, gate = peek(job, 0), peek(job, 1), peek(job, 2), peek(job, 3)
    rows, columns, each = peek(job, ROWS), peek(job, COLUMNS), peek(job, EACH)
    eps = total(load(ONE, job, 8 * EPS))
    start = take(team, 0) * each
    while start < rows:
        for r in range(start, min(rows, start + each)):
            at = 4 * columns * r
            factor = 1 / root(squares(x + at, columns, 0.0) / columns + eps)
            put_row(x + at, out + at, columns, weight, 0, 0.0, factor)
            k = 0
            while k + 16 <= columns:
                store(out, at + 4 * k, load(F, out, at + 4 * k) * silu(load(F, gate, at + 4 * k)))
                k += 16
            while k < columns:
                opened = silu(F(total(load(ONE, gate, at + 4 * k))))
                store(out, at + 4 * k, load(ONE, out, at + 4 * k) * (total(opened) / 16))
                k += 1
        start = take(team, 0) * each


@kernel(INT, INT, INT)
def l2_rows(job: int, member: int, team: int) -> None:
    out, x, rows, columns, each = peek(job, 0), peek(job, 1), peek(job, ROWS), peek(job, COLUMNS), peek(job, EACH)
    eps = total(load(ONE, job, 8 * EPS))
    start = take(team, 0) * each
    while start < rows:
        for r in range(start, min(rows, start + each)):
            at = 4 * columns * r
            put_row(x + at, out + at, columns, 0, 0, 0.0, 1 / root(squares(x + at, columns, 0.0) + eps))
        start = take(team, 0) * each


@kernel(INT, INT, INT)
def layer_rows(job: int, member: int, team: int) -> None:
    out, x, weight, bias = peek(job, 0), peek(job, 1), peek(job, 2), peek(job, 3)
    rows, columns, each = peek(job, ROWS), peek(job, COLUMNS), peek(job, EACH)
    eps = total(load(ONE, job, 8 * EPS))
    start = take(team, 0) * each
    while start < rows:
        for r in range(start, min(rows, start + each)):
            at = 4 * columns * r
            mean = summed(x + at, columns) / columns
            factor = 1 / root(squares(x + at, columns, mean) / columns + eps)
            put_row(x + at, out + at, columns, weight, bias, mean, factor)
        start = take(team, 0) * each


@inline
def turn(vec: Vector, x: int, out: int, half: int, cos: int, sin: int, at: int) -> None:
    a, b, c, s = load(vec, x, at), load(vec, x, half + at), load(vec, cos, at), load(vec, sin, at)
    store(out, at, a * c - b * s)
    store(out, half + at, fma(a, s, b * c))


@inline
def copied(x: int, out: int, start: int, stop: int) -> None:
    k = start
    while k + 16 <= stop:
        store(out, 4 * k, load(F, x, 4 * k))
        k += 16
    while k < stop:
        store(out, 4 * k, load(ONE, x, 4 * k))
        k += 1


@kernel(INT, INT, INT)
def rotate(job: int, member: int, team: int) -> None:
    """Arrays: 0 results, 1 x, 2 cos, 3 sin. Sizes: 8 tokens, 9 heads, 10 size of a head, 11 tokens in a unit, 12 R,
    13 pairs."""
    out, x, cos, sin = peek(job, 0), peek(job, 1), peek(job, 2), peek(job, 3)
    tokens, heads, size, each, turned = peek(job, 8), peek(job, 9), peek(job, 10), peek(job, 11), peek(job, 12)
    start = take(team, 0) * each
    while start < tokens:
        for t in range(start, min(tokens, start + each)):
            c, s = cos + 4 * turned * t, sin + 4 * turned * t
            for h in range(heads):
                at = 4 * size * (t * heads + h)
                if peek(job, 13):
                    for k in range(turned):
                        a, b = load(ONE, x, at + 8 * k), load(ONE, x, at + 8 * k + 4)
                        store(out, at + 8 * k, a * load(ONE, c, 4 * k) - b * load(ONE, s, 4 * k))
                        store(out, at + 8 * k + 4, fma(a, load(ONE, s, 4 * k), b * load(ONE, c, 4 * k)))
                else:
                    k = 0
                    while k + 16 <= turned:
                        turn(F, x + at, out + at, 4 * turned, c, s, 4 * k)
                        k += 16
                    while k < turned:
                        turn(ONE, x + at, out + at, 4 * turned, c, s, 4 * k)
                        k += 1
                copied(x + at, out + at, 2 * turned, size)
        start = take(team, 0) * each


def rows_work(kernel: Any, rows: int, columns: int, eps: float) -> Work:
    """A norm of so many rows."""
    each = max(1, UNIT // columns)
    return Work(kernel, (rows, columns, bits(eps), each), shared=rows > each)


class Rowwise:
    """The kernels above on arrays."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._works = Works()

    def norm(self, kernel: Any, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        """A new array of the shape of `x` (..., C). `bias` is the gate of `gated_rows`."""
        x = np.ascontiguousarray(x, np.float32)
        out = np.empty(x.shape, np.float32)
        key = (kernel, x.shape, eps)
        work = self._works.get(key)
        if work is None:
            work = self._works.keep(key, rows_work(kernel, x.size // x.shape[-1], x.shape[-1], eps))
        places = 0 if weight is None else id(weight), 0 if bias is None else id(bias)
        self._team.apply(work, id(out), id(x), *places)
        return out

    def rope(self, x: Any, cos: Any, sin: Any, pairs: bool) -> Any:
        """See `hf2q.backends.ops.Ops.rope`."""
        x, cos, sin = (np.ascontiguousarray(a, np.float32) for a in (x, cos, sin))
        out = np.empty(x.shape, np.float32)
        key = (x.shape, cos.shape[-1], pairs)
        work = self._works.get(key)
        if work is None:
            batch, tokens, heads, size = x.shape
            each = max(1, UNIT // (heads * size))
            sizes = batch * tokens, heads, size, each, cos.shape[-1], int(pairs)
            work = self._works.keep(key, Work(rotate, sizes, shared=batch * tokens > each))
        self._team.apply(work, id(out), id(x), id(cos), id(sin))
        return out
