"""float16 in 16-bit codes: by the machine if it can, else in integer arithmetic with equal results.

The integer paths follow the FP16 library (Marat Dukhan, github.com/Maratyszcza/FP16, fp16.h), which ggml uses as well.
"""

from __future__ import annotations

from typing import Any

from hf2q.simd.codegen import Built, define, f16, i16, ir
from hf2q.simd.compile import inline
from hf2q.simd.lanes import as_float, as_int, below, lshr, where
from hf2q.simd.machine import MACHINE
from hf2q.simd.vectors import Vector


@define
def _to_half_machine(x: Any) -> Built:
    to, half, bits = x.of("i32"), ir.VectorType(f16, x.n), ir.VectorType(i16, x.n)
    return to, (x,), lambda ctx, b, v: b.zext(b.bitcast(b.fptrunc(v, half), bits), to.llvm)


@define
def _from_half_machine(x: Any) -> Built:
    to, half, bits = x.of("f32"), ir.VectorType(f16, x.n), ir.VectorType(i16, x.n)
    return to, (x,), lambda ctx, b, v: b.fpext(b.bitcast(b.trunc(v, bits), half), to.llvm)


@inline
def _to_half_integer(x: Vector) -> Vector:
    twice = as_int(x) << 1
    exponent = twice & -0x1000000
    floor = lshr(where(below(exponent, 0x71000000), 0x71000000, exponent), 1) + 0x07800000
    v = as_int(as_float(floor) + abs(x) * 2.0**112 * 2.0**-110)  # the sum rounds off the bits that half lacks
    v = where(below(0xFF000000, twice), 0x7E00, (lshr(v, 13) & 0x7C00) + (v & 0xFFF))
    return (lshr(as_int(x), 16) & 0x8000) | v


@inline
def _from_half_integer(x: Vector) -> Vector:
    v = (x & 0x7FFF) << 13
    small = as_float(x & 0x3FF | 0x3F000000) - 0.5
    large = as_float(v | 0x7F800000)
    v = where(below(v, 0x800000), small, where(below(v, 0x0F800000), as_float(v + 0x38000000), large))
    return as_float(as_int(v) | (x & 0x8000) << 16)


# without F16C, LLVM would call a library function for each lane
_MACHINE = not MACHINE.x86 or "f16c" in MACHINE.features

to_half = _to_half_machine if _MACHINE else _to_half_integer
"""to_half(x): the bits of the nearest float16 (ties to even, infinity beyond 65504) in int32 lanes."""
from_half = _from_half_machine if _MACHINE else _from_half_integer
"""from_half(i): the float32 lanes of the float16 bits in int32 lanes."""
