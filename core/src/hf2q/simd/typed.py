"""The vector types as numba knows them, and number types as LLVM knows them. Imported when something is compiled."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import signature
from numba.extending import lower_builtin, lower_cast, models, register_model

i1, i8, i16, i32, i64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
f16, f32 = ir.HalfType(), ir.FloatType()

ELEMENT = {"f32": f32, "i32": i32, "mask": i1}
SCALAR = {"f32": types.float32, "i32": types.int32, "mask": types.boolean}


class Vec(types.Callable):  # type: ignore[misc]
    """`n` lanes of float32 ('f32'), int32 ('i32') or truth ('mask')."""

    def __init__(self, kind: str, n: int) -> None:
        self.kind, self.n = kind, n
        self.llvm = ir.VectorType(ELEMENT[kind], n)
        self.one = SCALAR[kind]
        super().__init__(f"{kind}x{n}")

    def of(self, kind: str) -> Vec:
        """As many lanes of another kind."""
        return Vec(kind, self.n)

    # the three methods below make `F(x)` a call that numba can type
    def get_call_signatures(self) -> tuple[tuple[()], bool]:
        return (), False

    def get_impl_key(self, sig: Any) -> type:
        return type(self)

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        if len(args) == 1 and (isinstance(args[0], types.Number) or getattr(args[0], "n", None) == self.n):
            return signature(self, *args)
        return None


class Scratch(types.Type):  # type: ignore[misc]
    """Vectors in the stack frame of the function that made them; see `hf2q.simd.scratch`."""

    def __init__(self, vec: Vec) -> None:
        self.vec, self.llvm = vec, vec.llvm.as_pointer()
        super().__init__(f"scratch({vec})")


@register_model(Vec)
@register_model(Scratch)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, kind.llvm)


def vector_of(*args: Any) -> Any:
    """The first vector type among `args`."""
    return next(a for a in args if isinstance(a, Vec))


CONVERSION = {"f32i32": "fptosi", "i32f32": "sitofp", "maski32": "zext", "maskf32": "uitofp"}


def convert(ctx: Any, b: Any, source: Any, to: Any, x: Any) -> Any:
    """LLVM code that makes a value of type `to` from `x`, a scalar or a vector of type `source`."""
    from hf2q.simd.codegen import splat

    if source == to:
        return x
    if isinstance(source, types.Number):
        return splat(b, ctx.cast(b, x, types.unliteral(source), to.one), to.n)
    return getattr(b, CONVERSION[source.kind + to.kind])(x, to.llvm)


# a scalar beside a vector (`x * 0.5`, `v & 15`) is cast to that vector's type
lower_cast(types.Number, Vec)(convert)


def _construct(ctx: Any, b: Any, sig: Any, values: Any) -> Any:
    return convert(ctx, b, sig.args[0], sig.return_type, values[0])


lower_builtin(types.TypeRef, types.Number)(_construct)
lower_builtin(types.TypeRef, Vec)(_construct)
