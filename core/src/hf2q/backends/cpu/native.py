"""What kernels need of the machine beyond vectors: memory by address, atomics, waiting, calls of compiled kernels.

Addresses and sizes are int64 everywhere. Nothing is checked.
"""

from __future__ import annotations

import mmap
import sys
from typing import TYPE_CHECKING, Any

from hf2q.simd.codegen import Built, call, define, i8, i16, i32, i64, ir, types
from hf2q.simd.machine import MACHINE

if TYPE_CHECKING:
    from hf2q.simd import Kernel


def _words(b: Any, a: Any, i: Any) -> Any:
    return b.inttoptr(b.add(a, b.mul(i, i64(8))), i64.as_pointer())


@define
def peek(a: Any, i: Any) -> Built:
    """The i-th int64 after address `a`."""
    return types.int64, (types.int64, types.int64), lambda ctx, b, a, i: b.load(_words(b, a, i))


@define
def poke(a: Any, i: Any, value: Any) -> Built:
    """Set the i-th int64 after address `a`."""

    def make(ctx: Any, b: Any, a: Any, i: Any, value: Any) -> None:
        b.store(value, _words(b, a, i))

    return types.none, (types.int64, types.int64, types.int64), make


@define
def peek32(a: Any, i: Any) -> Built:
    """The int32 at `i` bytes after address `a`."""

    def make(ctx: Any, b: Any, a: Any, i: Any) -> Any:
        return b.sext(b.load(b.inttoptr(b.add(a, i), i32.as_pointer()), align=1), i64)

    return types.int64, (types.int64, types.int64), make


@define
def peek8(a: Any, i: Any) -> Built:
    """The unsigned byte at `i` bytes after address `a`."""

    def make(ctx: Any, b: Any, a: Any, i: Any) -> Any:
        return b.zext(b.load(b.inttoptr(b.add(a, i), i8.as_pointer())), i64)

    return types.int64, (types.int64, types.int64), make


@define
def peek16(a: Any, i: Any) -> Built:
    """The unsigned 16-bit number at `i` bytes after address `a`."""

    def make(ctx: Any, b: Any, a: Any, i: Any) -> Any:
        return b.zext(b.load(b.inttoptr(b.add(a, i), i16.as_pointer()), align=1), i64)

    return types.int64, (types.int64, types.int64), make


@define
def atomic_add(a: Any, i: Any, value: Any) -> Built:
    """Add to the i-th int64 after `a`; gives what was there before. Sequentially consistent."""

    def make(ctx: Any, b: Any, a: Any, i: Any, value: Any) -> Any:
        return b.atomic_rmw("add", _words(b, a, i), value, "seq_cst")

    return types.int64, (types.int64, types.int64, types.int64), make


@define
def atomic_set(a: Any, i: Any, value: Any) -> Built:
    """Set the i-th int64 after `a`. Sequentially consistent, hence an exchange: a later read does not pass it."""

    def make(ctx: Any, b: Any, a: Any, i: Any, value: Any) -> None:
        b.atomic_rmw("xchg", _words(b, a, i), value, "seq_cst")

    return types.none, (types.int64, types.int64, types.int64), make


@define
def atomic_get(a: Any, i: Any) -> Built:
    """The i-th int64 after `a`, and with it everything written before it was set."""

    def make(ctx: Any, b: Any, a: Any, i: Any) -> Any:
        return b.load_atomic(_words(b, a, i), "seq_cst", 8)

    return types.int64, (types.int64, types.int64), make


@define
def address_of(a: Any) -> Built:
    """Where the data of an array begins."""

    def make(ctx: Any, b: Any, array: Any) -> Any:
        return b.ptrtoint(ctx.make_array(a)(ctx, b, array).data, i64)

    return types.int64, (a,), make


@define
def settled(a: Any) -> Built:
    """The same address, in one register from here on: an empty piece of assembly seems to change it.

    Intel's processors split an instruction that adds two registers to find its operand.
    """

    def make(ctx: Any, b: Any, a: Any) -> Any:
        return b.call(ir.InlineAsm(ir.FunctionType(i64, [i64]), "", "=r,0", side_effect=True), [a])

    return types.int64, (types.int64,), make


@define
def pause() -> Built:
    """Tell the processor that this is a waiting loop."""

    def make(ctx: Any, b: Any) -> None:
        if MACHINE.x86:
            call(b, "llvm.x86.sse2.pause", ir.VoidType())
        elif "neon" in MACHINE.features:
            call(b, "llvm.aarch64.hint", ir.VoidType(), i32(1))

    return types.none, (), make


@define
def give_way() -> Built:
    """Let other threads of the system run on this processor, if some want to."""

    def make(ctx: Any, b: Any) -> None:
        call(b, "SwitchToThread" if sys.platform == "win32" else "sched_yield", i32)

    return types.none, (), make


@define
def let_go(a: Any, size: Any) -> Built:
    """Let go of whole pages of a mapped file: they are read again when somebody looks. Elsewhere nothing."""

    def make(ctx: Any, b: Any, a: Any, size: Any) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):
            call(b, "madvise", i32, b.inttoptr(a, i8.as_pointer()), size, i32(mmap.MADV_DONTNEED))

    return types.none, (types.int64, types.int64), make


@define
def invoke(function: Any, first: Any, second: Any, third: Any) -> Built:
    """Call the compiled kernel at address `function`, made for three INT arguments; gives 0, or what it failed with.

    numba's own calling convention: a place for the result, a place for the exception, the arguments.
    """

    def make(ctx: Any, b: Any, function: Any, *values: Any) -> Any:
        kind = ir.FunctionType(i32, [i64.as_pointer(), i8.as_pointer().as_pointer(), i64, i64, i64])
        with b.goto_entry_block():
            result, problem = b.alloca(i64), b.alloca(i8.as_pointer())
        return b.sext(b.call(b.inttoptr(function, kind.as_pointer()), [result, problem, *values]), i64)

    return types.int64, (types.int64,) * 4, make


def entry(kernel: Kernel[..., Any]) -> int:
    """The address of a kernel for `invoke`; compiles it if need be. It stays valid as long as `kernel` lives."""
    return kernel.entry
