"""AMX: eight tiles of sixteen rows of 64 bytes, and the product of tiles of bfloat16 pairs.

`t` is what stands for the tile registers: with real ones nothing, in emulation the address of 8 KiB that hold them.
"""

from __future__ import annotations

from typing import Any

from hf2q.backends.cpu.isa import EMULATED, isa
from hf2q.simd import F32, I32, Vector, as_float, fma, inline, load, spread, store
from hf2q.simd.codegen import Built, call, define, i8, i16, i64, ir, types

F, I = F32(16), I32(16)  # noqa: E741


def _number(n: Any) -> Any:
    return i8(n.literal_value)


def _at(b: Any, a: Any) -> Any:
    return b.inttoptr(a, i8.as_pointer())


@define
def _configure(t: Any, a: Any) -> Built:
    def make(ctx: Any, b: Any, _: Any, a: Any) -> None:
        call(b, "llvm.x86.ldtilecfg", ir.VoidType(), _at(b, a))

    return types.none, (types.int64, types.int64), make


@define
def _release(t: Any) -> Built:
    def make(ctx: Any, b: Any, _: Any) -> None:
        call(b, "llvm.x86.tilerelease", ir.VoidType())

    return types.none, (types.int64,), make


@define
def _zero(t: Any, n: Any) -> Built:
    def make(ctx: Any, b: Any, *_: Any) -> None:
        call(b, "llvm.x86.tilezero", ir.VoidType(), _number(n))

    return types.none, (types.int64, n), make


@define
def _load(t: Any, n: Any, a: Any, stride: Any) -> Built:
    def make(ctx: Any, b: Any, _t: Any, _n: Any, a: Any, stride: Any) -> None:
        call(b, "llvm.x86.tileloadd64", ir.VoidType(), _number(n), _at(b, a), stride)

    return types.none, (types.int64, n, types.int64, types.int64), make


@define
def _store(t: Any, n: Any, a: Any, stride: Any) -> Built:
    def make(ctx: Any, b: Any, _t: Any, _n: Any, a: Any, stride: Any) -> None:
        call(b, "llvm.x86.tilestored64", ir.VoidType(), _number(n), _at(b, a), stride)

    return types.none, (types.int64, n, types.int64, types.int64), make


@define
def _multiply(t: Any, c: Any, a: Any, b: Any) -> Built:
    def make(ctx: Any, builder: Any, *_: Any) -> None:
        call(builder, "llvm.x86.tdpbf16ps", ir.VoidType(), _number(c), _number(a), _number(b))

    return types.none, (types.int64, c, a, b), make


@inline
def _configure_memory(t: int, a: int) -> None:
    pass


@inline
def _release_memory(t: int) -> None:
    pass


@inline
def _zero_memory(t: int, n: int) -> None:
    for row in range(16):
        store(t, 1024 * n + 64 * row, F(0))


@inline
def _load_memory(t: int, n: int, a: int, stride: int) -> None:
    for row in range(16):
        store(t, 1024 * n + 64 * row, load(I, a, stride * row))


@inline
def _store_memory(t: int, n: int, a: int, stride: int) -> None:
    for row in range(16):
        store(a, stride * row, load(I, t, 1024 * n + 64 * row))


@inline
def _multiply_memory(t: int, c: int, a: int, b: int) -> None:
    for row in range(16):
        total = load(F, t, 1024 * c + 64 * row)
        for pair in range(16):
            x, w = spread(I, t, 1024 * a + 64 * row + 4 * pair), load(I, t, 1024 * b + 64 * pair)
            total = fma(as_float(x << 16), as_float(w << 16), total)
            total = fma(as_float(x & -65536), as_float(w & -65536), total)
        store(t, 1024 * c + 64 * row, total)


_IN_MEMORY = isa() == EMULATED

configure: Any = _configure_memory if _IN_MEMORY else _configure
"""configure(t, a): the shape of the tiles, as 64 bytes at address a describe it."""
release: Any = _release_memory if _IN_MEMORY else _release
tile_zero: Any = _zero_memory if _IN_MEMORY else _zero
tile_load: Any = _load_memory if _IN_MEMORY else _load
"""tile_load(t, n, a, stride): sixteen rows of 64 bytes from address a, `stride` bytes apart."""
tile_store: Any = _store_memory if _IN_MEMORY else _store
tile_multiply: Any = _multiply_memory if _IN_MEMORY else _multiply
"""tile_multiply(t, c, a, b): c[m, n] += Σ over 32 inputs; a holds rows of inputs, b pairs of inputs by column."""


@define
def store_u16(a: Any, i: Any, x: Any) -> Built:
    """The low 16 bits of each int32 lane, `i` bytes after address `a`."""

    def make(ctx: Any, b: Any, a: Any, i: Any, x: Any) -> None:
        short = b.trunc(x, ir.VectorType(i16, x.type.count))
        b.store(short, b.inttoptr(b.add(a, i), short.type.as_pointer()), align=1)

    return types.none, (types.int64, types.int64, x), make


@define
def place(s: Any) -> Built:
    """The address of a scratch."""
    return types.int64, (s,), lambda ctx, b, s: b.ptrtoint(s, i64)


@inline
def shape(words: Vector) -> None:
    """Fill a scratch of sixteen int32 with the shape of eight full tiles: palette 1, 64 bytes a row, 16 rows."""
    words[0] = I(0)
    words[0, 0] = 1
    for k in range(4):
        words[0, 4 + k] = 0x00400040
    words[0, 12] = 0x10101010
    words[0, 13] = 0x10101010
