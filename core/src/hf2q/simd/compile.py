"""What kernels are defined with: `kernel` for what Python calls, `inline` for the parts of a kernel.

A definition costs next to nothing. The first use takes the machine code from the disk (`cache`), or compiles it
(`compiler`): only then numba is imported.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, cast

from hf2q.simd.arguments import Argument, flat
from hf2q.simd.cache import KernelCache
from hf2q.simd.loader import Loaded

P = ParamSpec("P")
R = TypeVar("R")


class Kernel(Generic[P, R]):
    """A compiled function. It is compiled, or loaded from disk, by the first use, once per process.

    Calls check types, dimensions and contiguity (TypeError) and nothing else: bounds are the caller's business.
    The GIL is released while it runs. RuntimeError when the kernel raises.
    """

    def __init__(self, function: Callable[P, R], arguments: tuple[Argument, ...]) -> None:
        self.py_func = function
        self._arguments = arguments
        self._plain = all(argument.ndim is None for argument in arguments)
        self._lock = threading.Lock()
        self._loaded: Loaded | None = None
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__

    def compile(self) -> Loaded:
        """Make the machine code now; a call does it otherwise.

        `call` of the result is the quick way in for a kernel whose arguments are all numbers.
        """
        if self._loaded is None:
            with self._lock:
                if self._loaded is None:
                    self._loaded = KernelCache(self.py_func, self._arguments).loaded()
        return self._loaded

    @property
    def entry(self) -> int:
        """The address of the kernel, valid as long as it lives; see `hf2q.backends.cpu.native.invoke`."""
        return self.compile().entry

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        loaded = self._loaded or self.compile()
        values: Any = args
        if kwargs:
            values = inspect.signature(self.py_func).bind(*args, **kwargs).args
        if not self._plain or len(values) != len(self._arguments):
            values = flat(self.__name__, self._arguments, values)
        return cast("R", loaded.call(*values))


class Part:
    """A part of kernels. `py_func` is what it was made from."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self._type: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self.__name__} is a part of kernels, which Python cannot call")

    @property
    def _numba_type_(self) -> Any:
        """What numba asks for when a kernel names the part."""
        if self._type is None:
            from hf2q.simd.compiler import type_of_part

            self._type = type_of_part(self.py_func)
        return self._type[0]


def kernel(*arguments: Argument) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Compile a function that Python calls, for these argument types (`reads(…)`, `writes(…)`, `INT`, `FLOAT`)."""

    def compiled(function: Callable[P, R]) -> Kernel[P, R]:
        return Kernel(function, arguments)

    return compiled


def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a part of kernels: it is merged into its caller, so results and scratch pass in registers."""
    return cast("Callable[P, R]", Part(function))
