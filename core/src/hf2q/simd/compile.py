"""From a Python function to machine code: `kernel` for what Python calls, `inline` for the parts of a kernel.

numba compiles without fast math and, at this layer, without contraction: rounding is exactly what the source says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
from numba import from_dtype, njit, types

from hf2q.simd.cache import KernelCache
from hf2q.simd.inlined import part

P = ParamSpec("P")
R = TypeVar("R")

INT = types.int64
"""The type of an integer argument of a kernel."""
FLOAT = types.float32
"""The type of a float argument of a kernel."""


def reads(dtype: str, ndim: int = 2) -> Any:
    """The type of an array argument that the kernel reads: C-contiguous, any alignment, read-only or not."""
    return types.Array(from_dtype(np.dtype(dtype)), ndim, "C", readonly=True, aligned=False)


def writes(dtype: str, ndim: int = 2) -> Any:
    """The type of an array argument that the kernel writes: C-contiguous, any alignment."""
    return types.Array(from_dtype(np.dtype(dtype)), ndim, "C", aligned=False)


class Kernel(Generic[P, R]):
    """A compiled function. It is compiled, or loaded from disk, by the first call, once per process.

    Calls check types, dimensions and contiguity (TypeError) and nothing else: bounds are the caller's business.
    The GIL is released while it runs.
    """

    def __init__(self, function: Callable[P, R], arguments: tuple[Any, ...]) -> None:
        self.py_func = function
        self._arguments = arguments
        self._dispatcher = njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)(function)
        self._dispatcher._cache = KernelCache(function)
        self._lock = threading.Lock()
        self._ready = False
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__

    def compile(self) -> None:
        """Make the machine code now; a call does it otherwise."""
        with self._lock:
            if not self._ready:
                self._dispatcher.compile(self._arguments)
                # one signature only: numba then converts (writable to read-only, aligned to any) instead of compiling
                # a variant for each combination of array flags
                self._dispatcher.disable_compile()
                self._ready = True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not self._ready:
            self.compile()
        result: R = self._dispatcher(*args, **kwargs)
        return result


def kernel(*arguments: Any) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Compile a function that Python calls, for these argument types (`reads(…)`, `writes(…)`, `INT`, `FLOAT`)."""

    def compiled(function: Callable[P, R]) -> Kernel[P, R]:
        return Kernel(function, arguments)

    return compiled


def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a part of kernels: it is merged into its caller, so results and scratch pass in registers."""
    compiled: Callable[P, R] = part(function)
    return compiled
