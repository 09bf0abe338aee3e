"""Explicit SIMD in numba: vectors as ordinary values, with operators. Codecs and the cpu backend write kernels in it.

    F = F32(WIDE)                            # vector types: float32 and int32 lanes

    @kernel(reads("float32", 1), writes("float32", 1), FLOAT)
    def scale(x, y, k):
        for i in range(0, x.size, WIDE):     # sizes are the caller's business: nothing here checks bounds
            v = load(F, x, i) * k            # a scalar beside a vector is spread over its lanes
            store(y, i, where(v < 0, -v, v))

A vector may be a loop variable, a tuple element, an argument or a result of an `inline` part. The number of lanes need
not match the machine's registers: LLVM splits wider vectors, so a kernel on WIDE = two registers has two independent
chains in flight with nothing unrolled in the source. What is written is what runs, rounding by rounding: no fast math,
no contraction (`fma` only by name), no dependence on automatic vectorization.

| module | what it gives |
|---|---|
| machine, host | LANES, WIDE, feature detection, HF2Q_SIMD_LANES |
| compile, arguments | kernel, inline, the types of arguments |
| vectors | F32, I32, F(x) |
| lanes | where, every, bits, numbers, as_int, as_float, lshr, below, …_half, sqrt, fma; total, lowest, highest, first |
| memory | load…, spread…, store…, put16, put32, prefetch, prefetch_far |
| scratch | scratch, transpose, columns |
| half, dot | to_half, from_half; dot products of bytes |
| codegen, late | how operations are defined |
| compiler, wrapper, typed, operators, elements | what numba is told; imported when something is compiled |
| elf, image, loader, llvm | from an object to code in memory |
| cache, folder, sources | compiled code on disk |

Importing this needs numba installed, which arrives with the extra `simd`, but imports it only to compile.
"""

import hf2q.simd.installed  # noqa: F401  (says what to install)
from hf2q.simd.arguments import FLOAT, INT, reads, writes
from hf2q.simd.compile import Kernel, inline, kernel
from hf2q.simd.dot import dot
from hf2q.simd.half import from_half, to_half
from hf2q.simd.lanes import (
    as_float,
    as_int,
    below,
    bits,
    every,
    first,
    fma,
    high_half,
    highest,
    low_half,
    lowest,
    lshr,
    numbers,
    sqrt,
    total,
    where,
)
from hf2q.simd.machine import LANES, WIDE
from hf2q.simd.memory import (
    load,
    load_i8,
    load_u8,
    load_u16,
    prefetch,
    prefetch_far,
    put16,
    put32,
    spread,
    spread_u8,
    spread_u16,
    store,
    store_u8,
)
from hf2q.simd.scratch import columns, scratch, transpose
from hf2q.simd.vectors import F32, I32, Vector

__all__ = (
    "FLOAT",
    "INT",
    "Kernel",
    "inline",
    "kernel",
    "reads",
    "writes",
    "LANES",
    "WIDE",
    "F32",
    "I32",
    "Vector",
    "as_float",
    "as_int",
    "below",
    "bits",
    "every",
    "first",
    "fma",
    "high_half",
    "highest",
    "low_half",
    "lowest",
    "lshr",
    "numbers",
    "sqrt",
    "total",
    "where",
    "load",
    "load_i8",
    "load_u8",
    "load_u16",
    "spread",
    "spread_u8",
    "spread_u16",
    "store",
    "store_u8",
    "put16",
    "put32",
    "prefetch",
    "prefetch_far",
    "columns",
    "scratch",
    "transpose",
    "from_half",
    "to_half",
    "dot",
)
