"""Kernels of routers and mixers: softmax, the k largest, their mask, and Sinkhorn's normalisation.

Arrays of a job: 0 results, 1 operand, 2 indices of `best`. Its sizes: 8 rows, 9 columns, 10 rows in a unit, 11 k or
the number of iterations, 12 the bits of a float32 epsilon.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hf2q.backends.cpu.kernels.functions import exp
from hf2q.backends.cpu.native import peek, peek32
from hf2q.backends.cpu.team import Team, Work, Works, bits
from hf2q.backends.cpu.teamwork import take
from hf2q.simd import F32, I32, INT, highest, inline, kernel, load, put32, scratch, store, total

F, I, ONE = F32(16), I32(16), F32(1)  # noqa: E741

UNIT = 1 << 12
"""Numbers in a unit."""
NEVER = -math.inf
MOST_BEST = 64
"""The largest k of `best`, which looks for one after the other."""

ROWS, COLUMNS, EACH, COUNT, EPS = 8, 9, 10, 11, 12


@inline
def one_at(a: int, at: int) -> float:
    result: float = total(load(ONE, a, at))
    return result


@inline
def exp_one(x: float) -> float:
    result: float = total(exp(F(x))) / 16
    return result


@kernel(INT, INT, INT)
def softmax_rows(job: int, member: int, team: int) -> None:
    rows, columns, each = peek(job, ROWS), peek(job, COLUMNS), peek(job, EACH)
    start = take(team, 0) * each
    while start < rows:
        for r in range(start, min(rows, start + each)):
            x, out = peek(job, 1) + 4 * columns * r, peek(job, 0) + 4 * columns * r
            most, whole = F(NEVER), columns // 16 * 16
            for k in range(0, whole, 16):
                v = load(F, x, 4 * k)
                most = v if k == 0 else max(most, v)
            best = highest(most)
            for k in range(whole, columns):
                best = max(best, one_at(x, 4 * k))
            acc, rest = F(0), 0.0
            for k in range(0, whole, 16):
                e = exp(load(F, x, 4 * k) - best)
                acc = acc + e
                store(out, 4 * k, e)
            for k in range(whole, columns):
                one = exp_one(one_at(x, 4 * k) - best)
                rest += one
                store(out, 4 * k, ONE(one))
            factor = 1 / (total(acc) + rest)
            for k in range(0, whole, 16):
                store(out, 4 * k, load(F, out, 4 * k) * factor)
            for k in range(whole, columns):
                store(out, 4 * k, load(ONE, out, 4 * k) * factor)
        start = take(team, 0) * each


@inline
def rank(x: int, k: int) -> int:
    """An integer from 0 to 2^32 - 1 that orders like number k, zeros alike, NaN below all."""
    bits: int = peek32(x, 4 * k) & 0xFFFFFFFF
    size = bits & 0x7FFFFFFF
    if size > 0x7F800000:
        return 0
    return 0x80000000 + size if bits == size else 0x80000000 - size


@inline
def threshold(x: int, columns: int, k: int) -> int:
    """The rank of the k-th largest number, found byte by byte from the top."""
    counts = scratch(I, 16)
    prefix, left = 0, k
    for shift in (24, 16, 8, 0):
        for i in range(16):
            counts[i] = I(0)
        for c in range(columns):
            found = rank(x, c)
            if found >> (shift + 8) == prefix:
                byte = found >> shift & 255
                counts[byte // 16, byte % 16] = counts[byte // 16, byte % 16] + 1
        byte = 255
        while byte > 0 and counts[byte // 16, byte % 16] < left:
            left -= counts[byte // 16, byte % 16]
            byte -= 1
        prefix = prefix << 8 | byte
    return prefix


@kernel(INT, INT, INT)
def mask_rows(job: int, member: int, team: int) -> None:
    """0 at the k largest of each row, the first of equal ones, and -inf elsewhere."""
    rows, columns, each, k = peek(job, ROWS), peek(job, COLUMNS), peek(job, EACH), peek(job, COUNT)
    start = take(team, 0) * each
    while start < rows:
        for r in range(start, min(rows, start + each)):
            x, out = peek(job, 1) + 4 * columns * r, peek(job, 0) + 4 * columns * r
            least = threshold(x, columns, k)
            equal = k
            for c in range(columns):
                equal -= rank(x, c) > least
            for c in range(columns):
                found = rank(x, c)
                chosen = found > least
                if found == least and equal > 0:
                    chosen = True
                    equal -= 1
                store(out, 4 * c, ONE(0.0 if chosen else NEVER))
        start = take(team, 0) * each


@kernel(INT, INT, INT)
def best(job: int, member: int, team: int) -> None:
    """The k largest of each row in descending order, and where they are."""
    rows, columns, each, k = peek(job, ROWS), peek(job, COLUMNS), peek(job, EACH), peek(job, COUNT)
    start = take(team, 0) * each
    while start < rows:
        for r in range(start, min(rows, start + each)):
            x = peek(job, 1) + 4 * columns * r
            out, index = peek(job, 0) + 4 * k * r, peek(job, 2) + 4 * k * r
            last, at = 1 << 32, -1  # what came before: of equal ones the first comes first
            for i in range(k):
                most, where_ = -1, 0
                for c in range(columns):
                    found = rank(x, c)
                    if found > most and (found < last or (found == last and c > at)):
                        most, where_ = found, c
                last, at = most, where_
                store(out, 4 * i, load(ONE, x, 4 * where_))
                put32(index, 4 * i, where_)
        start = take(team, 0) * each


@inline
def share(m: int, start: int, step: int, size: int, eps: float) -> None:
    """Divide `size` numbers, `step` apart, by their sum + eps."""
    sum_ = eps
    for i in range(size):
        sum_ += one_at(m, 4 * (start + step * i))
    for i in range(size):
        store(m, 4 * (start + step * i), ONE(one_at(m, 4 * (start + step * i)) / sum_))


@kernel(INT, INT, INT)
def balance(job: int, member: int, team: int) -> None:
    """`Ops.sinkhorn`: a row of the job is a matrix, its columns the size of that."""
    matrices, size, each, iterations = peek(job, ROWS), peek(job, COLUMNS), peek(job, EACH), peek(job, COUNT)
    eps = one_at(job, 8 * EPS)
    start = take(team, 0) * each
    while start < matrices:
        for number in range(start, min(matrices, start + each)):
            x, m = peek(job, 1) + 4 * size * size * number, peek(job, 0) + 4 * size * size * number
            for r in range(size):
                most = NEVER
                for c in range(size):
                    most = max(most, one_at(x, 4 * (size * r + c)))
                for c in range(size):
                    store(m, 4 * (size * r + c), ONE(exp_one(one_at(x, 4 * (size * r + c)) - most)))
                share(m, size * r, 1, size, 0.0)
                for c in range(size):
                    store(m, 4 * (size * r + c), load(ONE, m, 4 * (size * r + c)) + eps)
            for c in range(size):
                share(m, c, size, size, eps)
            for _ in range(iterations - 1):
                for r in range(size):
                    share(m, size * r, 1, size, eps)
                for c in range(size):
                    share(m, c, size, size, eps)
        start = take(team, 0) * each


class Choose:
    """The kernels above on arrays; see `hf2q.backends.ops.Ops` for what they do."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._works = Works()

    def softmax(self, x: Any) -> Any:
        x = np.ascontiguousarray(x, np.float32)
        out = np.empty(x.shape, np.float32)
        self._run(softmax_rows, x.shape, 0, 0.0, id(out), id(x))
        return out

    def top_k_mask(self, x: Any, k: int) -> Any:
        if k >= x.shape[-1]:
            return np.zeros(x.shape, np.float32)
        x = np.ascontiguousarray(x, np.float32)
        out = np.empty(x.shape, np.float32)
        self._run(mask_rows, x.shape, k, 0.0, id(out), id(x))
        return out

    def top_k(self, x: Any, k: int) -> tuple[Any, Any]:
        """For 1 to `MOST_BEST` of them."""
        x = np.ascontiguousarray(x, np.float32)
        shape = *x.shape[:-1], k
        out, index = np.empty(shape, np.float32), np.empty(shape, np.int32)
        self._run(best, x.shape, k, 0.0, id(out), id(x), id(index))
        return out, index

    def sinkhorn(self, x: Any, iterations: int, eps: float) -> Any:
        x = np.ascontiguousarray(x, np.float32)
        out = np.empty(x.shape, np.float32)
        self._run(balance, x.shape[:-1], iterations, eps, id(out), id(x))
        return out

    def _run(self, kernel: Any, shape: Any, count: int, eps: float, *arrays: int) -> None:
        key = kernel, shape, count, eps
        work = self._works.get(key)
        if work is None:
            columns, rows = shape[-1], math.prod(shape[:-1])
            each = max(1, UNIT // max(1, columns * max(1, count)))
            sizes = rows, columns, each, count, bits(eps)
            work = self._works.keep(key, Work(kernel, sizes, shared=rows > each))
        self._team.apply(work, *arrays)
