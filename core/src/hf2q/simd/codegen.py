"""Helpers that build LLVM instructions for the operations of the layer. `b` is always an llvmlite IRBuilder.

Nothing here is called from a kernel; the other modules of `hf2q.simd` define their operations with it. Whoever needs
LLVM or numba for an operation imports `ir`, `types` and the number types from here (see `late`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeAlias

from hf2q.simd.late import Late, settle

ir: Any = Late("llvmlite.ir")
types: Any = Late("numba:types")
typed: Any = Late("hf2q.simd.typed")
i1: Any = Late("hf2q.simd.typed:i1")
i8: Any = Late("hf2q.simd.typed:i8")
i16: Any = Late("hf2q.simd.typed:i16")
i32: Any = Late("hf2q.simd.typed:i32")
i64: Any = Late("hf2q.simd.typed:i64")
f16: Any = Late("hf2q.simd.typed:f16")
f32: Any = Late("hf2q.simd.typed:f32")

Built: TypeAlias = tuple[Any, tuple[Any, ...], Callable[..., Any]]
"""What `define` wants: result type, argument types, and make(ctx, b, *values) which builds the code."""


class Operation:
    """A function for kernels that stands for LLVM code. `py_func` is what builds that."""

    def __init__(self, build: Callable[..., Built]) -> None:
        self.py_func = build
        self._type: Any = None
        self.__name__, self.__doc__, self.__module__ = build.__name__, build.__doc__, build.__module__

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self.__name__} is an operation of kernels, which Python cannot call")

    @property
    def _numba_type_(self) -> Any:
        """What numba asks for when a kernel names the operation."""
        if self._type is None:
            from hf2q.simd.compiler import type_of_operation

            settle(globals())
            settle(self.py_func.__globals__)
            self._type = type_of_operation(self.py_func)
        return self._type


def define(build: Callable[..., Built]) -> Any:
    """A function for kernels from `build`, which gets the types of the arguments of a call."""
    return Operation(build)


def constant(t: Any, value: int) -> Any:
    """A vector with `value` in every lane."""
    return ir.Constant(t, [value] * t.count)


def shuffle(b: Any, x: Any, y: Any, lanes: Iterable[int]) -> Any:
    """The named lanes of x followed by y."""
    order = list(lanes)
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(i32, len(order)), order))


def splat(b: Any, x: Any, n: int) -> Any:
    """The scalar `x` in n lanes."""
    v = b.insert_element(ir.Constant(ir.VectorType(x.type, n), ir.Undefined), x, i32(0))
    return shuffle(b, v, v, [0] * n)


def call(b: Any, name: str, result: Any, *args: Any) -> Any:
    """Call the LLVM intrinsic, or the C function, `name`."""
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(function, args)


def pointer(ctx: Any, b: Any, kind: Any, a: Any, i: Any, to: Any) -> Any:
    """A pointer of type `to` to element `i` of an array (counted flat), or to byte `i` after an address."""
    if isinstance(kind, types.Array):
        return b.bitcast(b.gep(ctx.make_array(kind)(ctx, b, a).data, [i]), to.as_pointer())
    return b.inttoptr(b.add(a, i), to.as_pointer())
