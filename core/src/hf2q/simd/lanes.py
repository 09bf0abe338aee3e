"""What acts on lanes beyond Python's operators: selection, reductions, bit casts, shifts, square root, named fma."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf2q.simd.codegen import Built, call, define, i1, i32, i64, ir, shuffle, typed, types
from hf2q.simd.machine import MACHINE


@define
def where(mask: Any, x: Any, y: Any) -> Built:
    """x where the mask holds, else y; one of the two may be a scalar."""
    vec = typed.vector_of(x, y)
    if mask.n != vec.n:
        raise TypeError(f"where: a mask of {mask.n} lanes beside {vec}")
    return vec, (mask, vec, vec), lambda ctx, b, m, v, w: b.select(m, v, w)


@define
def every(mask: Any) -> Built:
    """Whether the mask holds in all lanes."""
    word = ir.IntType(mask.n)
    return types.boolean, (mask,), lambda ctx, b, m: b.icmp_unsigned("==", b.bitcast(m, word), word((1 << mask.n) - 1))


@define
def bits(mask: Any) -> Built:
    """The mask of up to 64 lanes as an integer, lane 0 in bit 0."""

    def make(ctx: Any, b: Any, m: Any) -> Any:
        word = b.bitcast(m, ir.IntType(mask.n))
        return word if mask.n == 64 else b.zext(word, i64)

    return types.int64, (mask,), make


@define
def first(mask: Any) -> Built:
    """The first lane in which the mask of up to 64 lanes holds; 64 if there is none."""

    def make(ctx: Any, b: Any, m: Any) -> Any:
        word = b.bitcast(m, ir.IntType(mask.n))
        return b.cttz(word if mask.n == 64 else b.zext(word, i64), i1(0))

    return types.int64, (mask,), make


@define
def numbers(vec: Any) -> Built:
    """The vector 0, 1, 2, … of the given int32 type."""
    t = vec.instance_type
    return t, (vec,), lambda ctx, b, _: ir.Constant(t.llvm, list(range(t.n)))


@define
def as_int(x: Any) -> Built:
    """The bits of float32 lanes."""
    return x.of("i32"), (x,), lambda ctx, b, v: b.bitcast(v, x.of("i32").llvm)


@define
def as_float(x: Any) -> Built:
    """The float32 lanes with these bits."""
    return x.of("f32"), (x,), lambda ctx, b, v: b.bitcast(v, x.of("f32").llvm)


@define
def lshr(x: Any, n: Any) -> Built:
    """x >> n with zeros shifted in."""
    return x, (x, x), lambda ctx, b, v, n: b.lshr(v, n)


@define
def below(x: Any, y: Any) -> Built:
    """x < y as unsigned integers; one of the two may be a scalar."""
    vec = typed.vector_of(x, y)
    return vec.of("mask"), (vec, vec), lambda ctx, b, v, w: b.icmp_unsigned("<", v, w)


@define
def low_half(x: Any) -> Built:
    """The first half of the lanes."""
    return typed.Vec(x.kind, x.n // 2), (x,), lambda ctx, b, v: shuffle(b, v, v, range(x.n // 2))


@define
def high_half(x: Any) -> Built:
    """The second half of the lanes."""
    return typed.Vec(x.kind, x.n // 2), (x,), lambda ctx, b, v: shuffle(b, v, v, range(x.n // 2, x.n))


@define
def sqrt(x: Any) -> Built:
    """The correctly rounded square root."""
    return x, (x,), lambda ctx, b, v: call(b, f"llvm.sqrt.v{x.n}f32", v.type, v)


@define
def fma(x: Any, y: Any, z: Any) -> Built:
    """x * y + z, rounded once where the machine can, else twice: never for bytes that must be reproduced."""
    if MACHINE.x86 and "fma" not in MACHINE.features:
        return z, (z, z, z), lambda ctx, b, u, v, w: b.fadd(b.fmul(u, v), w)
    return z, (z, z, z), lambda ctx, b, *v: call(b, f"llvm.fma.v{z.n}f32", v[0].type, *v)


@define
def total(x: Any) -> Built:
    """The sum of all lanes: halves are added until one lane is left."""

    return types.float32, (x,), lambda ctx, b, v: _halved(b, v, b.fadd)


@define
def lowest(x: Any) -> Built:
    """The least of all float32 lanes, none of which may be NaN; of zeros either."""
    return types.float32, (x,), lambda ctx, b, v: _halved(b, v, _chosen(b, "<"))


@define
def highest(x: Any) -> Built:
    """The greatest of all float32 lanes, none of which may be NaN; of zeros either."""
    return types.float32, (x,), lambda ctx, b, v: _halved(b, v, _chosen(b, ">"))


def _chosen(b: Any, sign: str) -> Callable[[Any, Any], Any]:
    return lambda v, w: b.select(b.fcmp_ordered(sign, v, w), v, w)


def _halved(b: Any, v: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """The scalar that is left when halves are combined until one lane remains."""
    while n := v.type.count // 2:
        v = combine(shuffle(b, v, v, range(n)), shuffle(b, v, v, range(n, 2 * n)))
    return b.extract_element(v, i32(0))
