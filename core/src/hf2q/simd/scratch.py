"""Working memory in the caller's stack frame, and the turn from rows in memory to one row per lane.

    s = scratch(F, 32)      # 32 vectors; F and the number are constants
    s[k]                    # a vector, read or written
    s[k, lane]              # one scalar of it

A scratch lives until the enclosing kernel returns, costs nothing to make and starts uninitialised: reading what was
never written is undefined, and LLVM may then delete the code around it.
"""

from __future__ import annotations

from typing import Any

from hf2q.simd.codegen import Built, define, f32, i64, shuffle, typed, types
from hf2q.simd.compile import inline
from hf2q.simd.machine import LANES, WIDE
from hf2q.simd.memory import load
from hf2q.simd.vectors import F32, Vector


@define
def scratch(vec: Any, n: Any) -> Built:
    """`n` vectors of type `vec` of uninitialised memory, until the enclosing kernel returns."""

    def make(ctx: Any, b: Any, *_: Any) -> Any:
        # in the entry block, so that a loop does not grow the stack
        with b.goto_entry_block():
            place = b.alloca(vec.instance_type.llvm, i64(n.literal_value))
        place.align = 64
        return place

    return typed.Scratch(vec.instance_type), (vec, n), make


# step by step, lanes of vector j come from vectors j // 2 and j // 2 + LANES // 2, interleaved: after log2(LANES)
# steps rows are columns
_INTERLEAVE = [[half + j // 2 + LANES * (j % 2) for j in range(LANES)] for half in (0, LANES // 2)]


@define
def transpose(rows: Any, s: Any, k: Any, lane: Any) -> Built:
    """Write the square `rows` (LANES vectors of LANES lanes), transposed, to s[k:k + LANES] from lane `lane` on."""

    def make(ctx: Any, b: Any, tile: Any, target: Any, k: Any, lane: Any) -> Any:
        v = [b.load(b.gep(tile, [i64(j)])) for j in range(LANES)]
        for _ in range(LANES.bit_length() - 1):
            v = [shuffle(b, v[j // 2], v[j // 2 + LANES // 2], _INTERLEAVE[j % 2]) for j in range(LANES)]
        base = b.gep(b.bitcast(target, f32.as_pointer()), [b.add(b.mul(k, i64(s.vec.n)), lane)])
        for j in range(LANES):
            b.store(v[j], b.bitcast(b.gep(base, [i64(j * s.vec.n)]), v[j].type.as_pointer()), align=4)

    return types.none, (rows, s, types.int64, types.int64), make


ROW = F32(LANES)


@inline
def columns(s: Vector, count: int, x: Any, start: int, step: int, first: int, last: int) -> None:
    """s[k] = element k of WIDE rows of `x`, for k < count (a multiple of 16).

    Row r begins at element start + step * r, and lane l holds row min(first + l, last): spare lanes repeat the last.
    """
    tile = scratch(ROW, LANES)
    for lane in range(0, WIDE, LANES):
        for k in range(0, count, LANES):
            for r in range(LANES):
                tile[r] = load(ROW, x, start + step * min(first + lane + r, last) + k)
            transpose(tile, s, k, lane)
