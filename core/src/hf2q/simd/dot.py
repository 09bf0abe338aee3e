"""Dot products of bytes, exact: the heart of the matrix kernels."""

from __future__ import annotations

from typing import Any

from hf2q.simd.codegen import Built, call, constant, define, i8, i16, i32, ir, shuffle
from hf2q.simd.machine import LANES, MACHINE

_FUSED = {16: "avx512vnni", 8: "avxvnni"}
_PAIRS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


@define
def dot(accumulator: Any, u: Any, s: Any) -> Built:
    """accumulator + u.s, exact: a lane of `u` is four unsigned bytes, a lane of `s` four signed ones."""
    return u, (u, u, u), lambda ctx, b, *values: _whole(b, *values)


def _whole(b: Any, *values: Any) -> Any:
    """One register at a time."""
    n = values[0].type.count
    if n <= LANES:
        return _register(b, n, *values)
    halves = [[shuffle(b, v, v, range(h, h + n // 2)) for v in values] for h in (0, n // 2)]
    low, high = (_whole(b, *half) for half in halves)
    return shuffle(b, low, high, range(n))


def _register(b: Any, n: int, t: Any, x: Any, y: Any) -> Any:
    chars = ir.VectorType(i8, 4 * n)
    if MACHINE.x86 and _FUSED.get(n) in MACHINE.features:
        return call(b, f"llvm.x86.avx512.vpdpbusd.{32 * n}", t.type, t, b.bitcast(x, chars), b.bitcast(y, chars))
    if not MACHINE.x86 or n not in _PAIRS:
        # LLVM chooses the instruction (dot products of NEON, where the CPU has them)
        words = ir.VectorType(i32, 4 * n)
        product = b.mul(b.zext(b.bitcast(x, chars), words), b.sext(b.bitcast(y, chars), words))
        return call(b, f"llvm.vector.partial.reduce.add.v{n}i32.v{4 * n}i32", t.type, t, product)
    # pmaddubsw would saturate, so even and odd bytes are multiplied as 16-bit numbers
    shorts = ir.VectorType(i16, 2 * n)
    x, y, eight = b.bitcast(x, shorts), b.bitcast(y, shorts), constant(shorts, 8)
    even = call(b, _PAIRS[n], t.type, b.and_(x, constant(shorts, 255)), b.ashr(b.shl(y, eight), eight))
    odd = call(b, _PAIRS[n], t.type, b.lshr(x, eight), b.ashr(y, eight))
    return b.add(b.add(t, even), odd)
