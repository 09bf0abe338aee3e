"""Asking for weights before they are needed, a few lines at a time: in one burst they would wait for each other.

Several rows of x fill the first-level cache, and super-blocks are computed slowly. There weights are asked into the
second level, and earlier: twice as fast with eight rows, 1.4 times with one row of Q6_K, measured on Zen 4.
"""

from __future__ import annotations

from typing import Any

from hf2q.simd.codegen import Built, call, define, i8, i32, i64, ir, types
from hf2q.simd.machine import LANES, MACHINE

NEAR, FAR = 4096, 8192
"""How far ahead, in bytes: into the first-level cache, and into the second."""


@define
def prefetch_far(a: Any, i: Any) -> Built:
    """Ask for the cache line `i` bytes after address `a`, into the second-level cache."""

    def make(ctx: Any, b: Any, a: Any, i: Any) -> Any:
        place = b.inttoptr(b.add(a, i), i8.as_pointer())
        return call(b, "llvm.prefetch.p0", ir.VoidType(), place, i32(0), i32(2), i32(1))

    return types.none, (types.int64, types.int64), make


def asking(lines: int, *, far: bool, there: bool = False) -> Any:
    """A function for kernels, ask(acc, p): gives the vector `acc`, and asks for `lines` cache lines ahead of `p`, or
    for those that are `there`.

    It does so here and not elsewhere: of a loop that LLVM unrolls it would put all requests first, and kernels would
    run at half the speed. Hence an empty piece of assembly that seems to change both `acc` and the address.
    """
    distance, level = (FAR, 2) if far else (NEAR, 3)
    begin = 0 if there else distance

    @define
    def ask(acc: Any, p: Any) -> Built:
        def make(ctx: Any, b: Any, acc: Any, p: Any) -> Any:
            if MACHINE.x86 and acc.type.count == LANES:
                both = ir.LiteralStructType([acc.type, i64])
                vector = "v" if LANES == 16 else "x"
                kind = ir.FunctionType(both, [acc.type, i64])
                tied = b.call(ir.InlineAsm(kind, "", f"={vector},=r,0,1", side_effect=True), [acc, p])
                acc, p = b.extract_value(tied, 0), b.extract_value(tied, 1)
            for place in range(begin, begin + 64 * lines, 64):
                line = b.inttoptr(b.add(p, i64(place)), i8.as_pointer())
                call(b, "llvm.prefetch.p0", ir.VoidType(), line, i32(0), i32(level), i32(1))
            return acc

        return acc, (acc, types.int64), make

    return ask
