"""Helpers that build LLVM instructions for the operations of the layer. `b` is always an llvmlite IRBuilder.

Nothing here is called from a kernel; the other modules of `hf2q.simd` define their operations with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

i1, i8, i16, i32, i64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
f16, f32 = ir.HalfType(), ir.FloatType()

Built: TypeAlias = tuple[Any, tuple[Any, ...], Callable[..., Any]]
"""What `define` wants: result type, argument types, and make(ctx, b, *values) which builds the code."""


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
    """Call the LLVM intrinsic `name`."""
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(function, args)


def pointer(ctx: Any, b: Any, kind: Any, a: Any, i: Any, to: Any) -> Any:
    """A pointer of type `to` to element `i` of an array (counted flat), or to byte `i` after an address."""
    if isinstance(kind, types.Array):
        return b.bitcast(b.gep(ctx.make_array(kind)(ctx, b, a).data, [i]), to.as_pointer())
    return b.inttoptr(b.add(a, i), to.as_pointer())


def define(build: Callable[..., Built]) -> Any:
    """A function for kernels from `build`, which gets the types of the arguments of a call."""

    def typed(context: Any, *args: Any) -> Any:
        result, wanted, make = build(*args)

        def generate(ctx: Any, b: Any, sig: Any, values: Any) -> Any:
            made = make(ctx, b, *values)
            return ctx.get_dummy_value() if result == types.none else made

        return result(*wanted), generate

    typed.__name__, typed.__doc__ = build.__name__, build.__doc__
    # numba reads the parameter names, and refuses *args
    first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.Signature([first, *inspect.signature(build).parameters.values()])
    typed.__signature__ = signature  # type: ignore[attr-defined]
    return intrinsic(prefer_literal=True)(typed)
