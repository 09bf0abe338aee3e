"""Python's operators on vectors: + - * / & | ^ << >> < <= > >= == != abs min max, unary - and ~.

A scalar beside a vector is spread over its lanes. On int32 arithmetic wraps and >> keeps the sign. `min` and `max`
take the second value only if it is strictly better, as Python does; that is also ggml's `if (x < min) min = x`, and
one instruction. Comparisons with NaN are false, except !=.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin

from hf2q.simd.codegen import call, constant
from hf2q.simd.typed import Vec, vector_of


def register(op: Any, makers: dict[str, Any], *, result: str | None = None, arity: int = 2) -> None:
    """Let numba type and build `op`. `makers` has for each kind of vector a function of (b, *values), or the name of a
    builder method; `result` is the kind of the result where it is not that of the arguments."""

    @infer_global(op)
    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) != arity or not any(isinstance(a, Vec) for a in args):
                return None
            vec = vector_of(*args)
            if vec.kind not in makers or not all(a == vec or isinstance(a, types.Number) for a in args):
                return None
            return signature(vec.of(result or vec.kind), *[vec] * arity)

    def lower(ctx: Any, b: Any, sig: Any, values: Any) -> Any:
        make = makers[sig.args[0].kind]
        return getattr(b, make)(*values) if isinstance(make, str) else make(b, *values)

    lower_builtin(op, *[Vec] * arity)(lower)


def _compare(sign: str) -> dict[str, Callable[..., Any]]:
    def floats(b: Any, x: Any, y: Any) -> Any:
        return (b.fcmp_unordered if sign == "!=" else b.fcmp_ordered)(sign, x, y)

    def integers(b: Any, x: Any, y: Any) -> Any:
        return b.icmp_signed(sign, x, y)

    return {"f32": floats, "i32": integers}


def _second_if(better: Callable[..., Any]) -> Callable[..., Any]:
    return lambda b, x, y: b.select(better(b, y, x), y, x)


def _abs_f32(b: Any, x: Any) -> Any:
    return call(b, f"llvm.fabs.v{x.type.count}f32", x.type, x)


def _abs_i32(b: Any, x: Any) -> Any:
    return b.select(b.icmp_signed("<", x, constant(x.type, 0)), b.neg(x), x)


_BINARY: dict[str, dict[str, Any]] = {
    "add": {"f32": "fadd", "i32": "add"},
    "sub": {"f32": "fsub", "i32": "sub"},
    "mul": {"f32": "fmul", "i32": "mul"},
    "truediv": {"f32": "fdiv"},
    "and_": {"i32": "and_", "mask": "and_"},
    "or_": {"i32": "or_", "mask": "or_"},
    "xor": {"i32": "xor", "mask": "xor"},
    "lshift": {"i32": "shl"},
    "rshift": {"i32": "ashr"},
}

for _name, _makers in _BINARY.items():
    register(getattr(operator, _name), _makers)
    register(getattr(operator, "i" + _name.rstrip("_")), _makers)
for _name, _sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    register(getattr(operator, _name), _compare(_sign), result="mask")
for _op, _sign in ((min, "<"), (max, ">")):
    register(_op, {kind: _second_if(better) for kind, better in _compare(_sign).items()})
register(operator.neg, {"f32": "fneg", "i32": "neg"}, arity=1)
register(operator.invert, {"i32": "not_", "mask": "not_"}, arity=1)
register(abs, {"f32": _abs_f32, "i32": _abs_i32}, arity=1)
