"""Byte arithmetic of the linear kernels: exact dot products in the form each processor does fastest, table look-up.

A lane of an int32 vector is four bytes. Weights come in two kinds, and each has its product with activations, signed
bytes within -127..127 (never -128):

narrow   unsigned codes up to 63. Without VNNI a product of two neighbours fits 16 bits, and so do sums of up to
         `run(top)` of them, so half the work is done on 16-bit lanes: `narrow_step` adds to such a partial sum,
         `narrow_close` makes int32 of it. With VNNI the step does it all, and closing is nothing.
wide     any signed byte, kept as `byte ^ WIDE_FLIP`: VNNI multiplies unsigned by signed, so there the byte is kept
         + 128 and the product corrected by the activations' sum (`WIDE_OFFSET`); AVX2 takes the sign from the weight
         and gives it to the activation.

All results are exact integers: every path gives the same numbers.
"""

from __future__ import annotations

from typing import Any

from hf2q.simd.codegen import Built, call, constant, define, i8, i16, i32, ir, shuffle
from hf2q.simd.dot import dot
from hf2q.simd.machine import LANES, MACHINE

VNNI = MACHINE.x86 and {16: "avx512vnni", 8: "avxvnni"}.get(LANES, "") in MACHINE.features
SHORTS = MACHINE.x86 and LANES >= 8 and not VNNI
"""Whether there is pmaddubsw and no better: 16-bit partial sums."""
SIGNS = SHORTS and LANES == 8
"""Whether there is psignb."""
HALVED = MACHINE.x86 and LANES == 8
"""Whether there are sixteen registers of eight lanes, too few for the sums of sixteen rows of weights."""

WIDE_FLIP = 0 if SIGNS or not MACHINE.x86 else -0x7F7F7F80  # 0x80808080 as int32
WIDE_OFFSET = 0 if WIDE_FLIP == 0 else 128

_MADDUBS = {8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}
_MADDWD = {8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


def run(top: int, words: int) -> int:
    """How many steps may go between two closings, for codes up to `top`, when there are `words` of them."""
    if not SHORTS:
        return words
    steps = 1
    while 2 * steps <= words and 2 * steps * 2 * top * 127 <= 32767:
        steps *= 2
    return steps


def _by_register(build: Any) -> Any:
    """Apply `build(b, n, *values)` to each register of wider vectors."""

    def whole(b: Any, *values: Any) -> Any:
        n = values[0].type.count
        if n <= LANES:
            return build(b, n, *values)
        halves = [[shuffle(b, v, v, range(h, h + n // 2)) for v in values] for h in (0, n // 2)]
        low, high = (whole(b, *half) for half in halves)
        return shuffle(b, low, high, range(n))

    return whole


def _pairs(b: Any, n: int, u: Any, s: Any) -> Any:
    """Sums of two neighbouring products of unsigned and signed bytes, in 16-bit lanes."""
    chars, shorts = ir.VectorType(i8, 4 * n), ir.VectorType(i16, 2 * n)
    return call(b, _MADDUBS[n], shorts, b.bitcast(u, chars), b.bitcast(s, chars))


def _in_order(b: Any, value: Any) -> Any:
    """The same value, computed here and not elsewhere.

    An empty piece of assembly that seems to change it. Without, LLVM regroups sums of several rows, row by row, and
    has not registers enough for what it then keeps: half the speed.
    """
    kind = ir.FunctionType(value.type, [value.type])
    return b.call(ir.InlineAsm(kind, "", "=v,0" if LANES == 16 else "=x,0", side_effect=True), [value])


def _step(b: Any, n: int, t: Any, u: Any, s: Any) -> Any:
    total = b.add(b.bitcast(t, ir.VectorType(i16, 2 * n)), _pairs(b, n, u, s))
    return _in_order(b, b.bitcast(total, t.type))


def _close(b: Any, n: int, t: Any) -> Any:
    shorts = ir.VectorType(i16, 2 * n)
    return call(b, _MADDWD[n], t.type, b.bitcast(t, shorts), constant(shorts, 1))


def _signed(b: Any, n: int, t: Any, w: Any, s: Any) -> Any:
    chars = ir.VectorType(i8, 4 * n)
    size = call(b, f"llvm.abs.v{4 * n}i8", chars, b.bitcast(w, chars), ir.IntType(1)(0))
    turned = call(b, "llvm.x86.avx2.psign.b", chars, b.bitcast(s, chars), b.bitcast(w, chars))
    return _in_order(b, b.add(t, _close(b, n, b.bitcast(_pairs(b, n, size, turned), t.type))))


def _both_signed(b: Any, n: int, t: Any, w: Any, s: Any) -> Any:
    # LLVM chooses: sdot of NEON, where the processor has it
    chars, words = ir.VectorType(i8, 4 * n), ir.VectorType(i32, 4 * n)
    product = b.mul(b.sext(b.bitcast(w, chars), words), b.sext(b.bitcast(s, chars), words))
    return call(b, f"llvm.vector.partial.reduce.add.v{n}i32.v{4 * n}i32", t.type, t, product)


@define
def _narrow_shorts(t: Any, u: Any, s: Any) -> Built:
    return t, (t, t, t), lambda ctx, b, *values: _by_register(_step)(b, *values)


@define
def _close_shorts(t: Any) -> Built:
    return t, (t,), lambda ctx, b, value: _by_register(_close)(b, value)


@define
def _close_nothing(t: Any) -> Built:
    return t, (t,), lambda ctx, b, value: value


@define
def _wide_signs(t: Any, w: Any, s: Any) -> Built:
    return t, (t, t, t), lambda ctx, b, *values: _by_register(_signed)(b, *values)


@define
def _dot_signed(t: Any, w: Any, s: Any) -> Built:
    return t, (t, t, t), lambda ctx, b, *values: _by_register(_both_signed)(b, *values)


def _without(b: Any, n: int, t: Any, u: Any) -> Any:
    shorts = ir.VectorType(i16, 2 * n)
    return b.bitcast(b.sub(b.bitcast(t, shorts), b.bitcast(u, shorts)), t.type)


@define
def without(t: Any, u: Any) -> Built:
    """The difference of 16-bit partial sums."""
    return t, (t, t), lambda ctx, b, *values: _by_register(_without)(b, *values)


narrow_step: Any = _narrow_shorts if SHORTS else dot if MACHINE.x86 else _dot_signed
"""narrow_step(partial, codes, activations)."""
narrow_close: Any = _close_shorts if SHORTS else _close_nothing
"""narrow_close(partial): int32 sums."""
wide_step: Any = _wide_signs if SIGNS else dot if MACHINE.x86 else _dot_signed
"""wide_step(sum, bytes ^ WIDE_FLIP, activations); add -WIDE_OFFSET times the activations' sum."""
wide_close: Any = _close_nothing


def look_up(numbers: tuple[int, ...]) -> Any:
    """A function for kernels: in each byte of an int32 vector (0 to 15) the byte of that number among sixteen."""

    @define
    def found(index: Any) -> Built:
        return index, (index,), lambda ctx, b, at: _by_register(_taken([k & 255 for k in numbers]))(b, at)

    return found


def _taken(numbers: list[int]) -> Any:
    def build(b: Any, n: int, at: Any) -> Any:
        chars = ir.VectorType(i8, 4 * n)
        index = b.bitcast(at, chars)
        if MACHINE.x86 and LANES >= 8:  # pshufb looks within 16 bytes each, hence the repeated table
            name = {8: "llvm.x86.avx2.pshuf.b", 16: "llvm.x86.avx512.pshuf.b.512"}[n]
            found = call(b, name, chars, ir.Constant(chars, numbers * (n // 4)), index)
        elif not MACHINE.x86 and n == 4:
            found = call(b, "llvm.aarch64.neon.tbl1.v16i8", chars, ir.Constant(chars, numbers), index)
        else:
            found = constant(chars, numbers[0])
            for k, number in enumerate(numbers[1:], 1):
                same = b.icmp_unsigned("==", index, constant(chars, k))
                found = b.select(same, constant(chars, number), found)
        return b.bitcast(found, at.type)

    return build
