"""Loads and stores. Nothing is checked and no alignment is asked for.

`a` is a contiguous array of any number of dimensions, and `i` counts its elements flat; or `a` is an address, and `i`
counts bytes. `vec` is the type to load.
"""

from __future__ import annotations

from typing import Any

from hf2q.simd.codegen import Built, call, define, i8, i32, ir, pointer, splat, typed, types


def _consecutive(element: str = "", extend: str = "") -> Any:
    def build(vec: Any, a: Any, i: Any) -> Built:
        t = vec.instance_type

        def make(ctx: Any, b: Any, _: Any, base: Any, at: Any) -> Any:
            unit = ir.VectorType(getattr(typed, element) if element else t.llvm.element, t.n)
            v = b.load(pointer(ctx, b, a, base, at, unit), align=1)
            return getattr(b, extend)(v, t.llvm) if extend else v

        return t, (vec, a, types.int64), make

    return build


def _one(element: str = "", extend: str = "") -> Any:
    def build(vec: Any, a: Any, i: Any) -> Built:
        t = vec.instance_type

        def make(ctx: Any, b: Any, _: Any, base: Any, at: Any) -> Any:
            unit = getattr(typed, element) if element else t.llvm.element
            x = b.load(pointer(ctx, b, a, base, at, unit), align=1)
            return splat(b, getattr(b, extend)(x, t.llvm.element) if extend else x, t.n)

        return t, (vec, a, types.int64), make

    return build


def _stored(element: str = "") -> Any:
    def build(a: Any, i: Any, x: Any) -> Built:
        vector = isinstance(x, typed.Vec)

        def make(ctx: Any, b: Any, base: Any, at: Any, v: Any) -> Any:
            if element:
                unit = getattr(typed, element)
                v = b.trunc(v, ir.VectorType(unit, x.n) if vector else unit)
            b.store(v, pointer(ctx, b, a, base, at, v.type), align=1)

        return types.none, (a, types.int64, x if vector else types.int64), make

    return build


def _named(name: str, doc: str, build: Any) -> Any:
    build.__name__, build.__doc__ = name, doc
    return define(build)


load = _named("load", "Consecutive 32-bit elements.", _consecutive())
load_i8 = _named("load_i8", "Consecutive signed bytes, widened to int32.", _consecutive("i8", "sext"))
load_u8 = _named("load_u8", "Consecutive unsigned bytes, widened to int32.", _consecutive("i8", "zext"))
load_u16 = _named("load_u16", "Consecutive unsigned 16-bit elements, widened to int32.", _consecutive("i16", "zext"))
spread = _named("spread", "One 32-bit element in every lane.", _one())
spread_u8 = _named("spread_u8", "One unsigned byte in every int32 lane.", _one("i8", "zext"))
spread_u16 = _named("spread_u16", "One unsigned 16-bit element in every int32 lane.", _one("i16", "zext"))
store = _named("store", "store(a, i, x): consecutive 32-bit elements.", _stored())
store_u8 = _named("store_u8", "store_u8(a, i, x): the low byte of each int32 lane.", _stored("i8"))
put16 = _named("put16", "put16(a, i, n): the low 16 bits of one integer.", _stored("i16"))
put32 = _named("put32", "put32(a, i, n): the low 32 bits of one integer.", _stored("i32"))


def _prefetched(near: int) -> Any:
    def build(a: Any, i: Any) -> Built:
        def make(ctx: Any, b: Any, base: Any, at: Any) -> Any:
            place = pointer(ctx, b, a, base, at, i8)
            return call(b, "llvm.prefetch.p0", ir.VoidType(), place, i32(0), i32(near), i32(1))

        return types.none, (a, types.int64), make

    return build


prefetch = _named(
    "prefetch", "Ask for the cache line at element (or byte) `i`; the place need not exist.", _prefetched(3)
)
prefetch_far = _named("prefetch_far", "The same, into the second cache only.", _prefetched(2))
