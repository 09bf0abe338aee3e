"""Kernels of one number at a time: activations of arrays of any shape.

A job's arrays: 0 results, 1 and 2 operands. Its sizes: 8 their length, 9 how many make a unit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hf2q.backends.cpu.kernels import functions
from hf2q.backends.cpu.native import peek
from hf2q.backends.cpu.specialise import specialise
from hf2q.backends.cpu.team import Team, Work, Works
from hf2q.backends.cpu.teamwork import take
from hf2q.simd import F32, Kernel, Vector, inline, load, scratch, store, total

F, ONE = F32(16), F32(1)

UNIT = 1 << 14
"""Numbers in a unit: about 20 µs of work."""

function: Any = None


@inline
def silu_times(x: Vector, y: Vector) -> Vector:
    return functions.silu(x) * y


@inline
def gelu_times(x: Vector, y: Vector) -> Vector:
    return functions.gelu_tanh(x) * y


@inline
def exp_of(x: Vector, y: Vector) -> Vector:
    return functions.exp(x)


@inline
def sigmoid_of(x: Vector, y: Vector) -> Vector:
    return functions.sigmoid(x)


@inline
def silu_of(x: Vector, y: Vector) -> Vector:
    return functions.silu(x)


@inline
def gelu_of(x: Vector, y: Vector) -> Vector:
    return functions.gelu(x)


@inline
def gelu_tanh_of(x: Vector, y: Vector) -> Vector:
    return functions.gelu_tanh(x)


@inline
def sum_of(x: Vector, y: Vector) -> Vector:
    return x + y


FUNCTIONS = {
    "add": sum_of,
    "exp": exp_of,
    "sigmoid": sigmoid_of,
    "silu": silu_of,
    "gelu": gelu_of,
    "gelu_tanh": gelu_tanh_of,
    "swiglu": silu_times,
    "geglu": gelu_times,
}


def elementwise(job: int, member: int, team: int) -> None:
    out, a, b, count, each = peek(job, 0), peek(job, 1), peek(job, 2), peek(job, 8), peek(job, 9)
    rest = scratch(F, 2)
    start = take(team, 0) * each
    while start < count:
        stop = min(count, start + each)
        for k in range(start, stop - 15, 16):
            store(out, 4 * k, function(load(F, a, 4 * k), load(F, b, 4 * k)))
        whole = start + (stop - start) // 16 * 16
        if whole < stop:
            rest[0] = rest[1] = F(0)
            for k in range(whole, stop):
                rest[0, k - whole] = total(load(ONE, a, 4 * k))
                rest[1, k - whole] = total(load(ONE, b, 4 * k))
            rest[0] = function(rest[0], rest[1])
            for k in range(whole, stop):
                store(out, 4 * k, ONE(rest[0, k - whole]))
        start = take(team, 0) * each


class Elementwise:
    """The functions of `FUNCTIONS` by name, each compiled when it is first used."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._kernels: dict[str, Kernel[[int, int, int], None]] = {}
        self._works = Works()

    def __call__(self, name: str, a: Any, b: Any | None = None) -> Any:
        """A new array of the shape of `a`, which `b` has too."""
        a = np.ascontiguousarray(a, np.float32)
        b = a if b is None else np.ascontiguousarray(b, np.float32)
        out = np.empty(a.shape, np.float32)
        work = self._works.get((name, a.size))
        if work is None:
            work = self._works.keep((name, a.size), self.work(name, a.size))
        self._team.apply(work, id(out), id(a), id(b))
        return out

    def work(self, name: str, count: int) -> Work:
        """A function of so many numbers."""
        return Work(self.kernel(name), (count, UNIT), shared=count > UNIT)

    def kernel(self, name: str) -> Kernel[[int, int, int], None]:
        """The kernel of a function."""
        kernel = self._kernels.get(name)
        if kernel is None:
            kernel = self._kernels[name] = specialise(elementwise, name, function=FUNCTIONS[name])
        return kernel
