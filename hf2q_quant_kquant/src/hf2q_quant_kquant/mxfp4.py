"""MXFP4: 32 weights in 17 bytes: a shared power of two, then 16 bytes of codes of four-bit floats (E2M1).

The first byte e (E8M0) gives the step 2**(e - 128); a code's three low bits stand for 0, 1, 2, 3, 4, 6, 8 or 12 steps,
its high bit for the sign. Byte k holds the code of weight k in its low and that of weight k + 16 in its high half.
The step is chosen so that the largest magnitude is 8 to 16 steps; beyond 12 codes saturate.
Layout: block_mxfp4 of ggml/src/ggml-common.h; bytes: quantize_row_mxfp4_ref of ggml/src/ggml-quants.c, except where
the largest magnitude is below 2**-125. There the reference's exponent wraps to an enormous step, with which it stores
zeros (or the invalid exponent 255); here the smallest step, 2**-128, is taken.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import (
    F32,
    I32,
    Vector,
    as_float,
    as_int,
    highest,
    inline,
    kernel,
    load,
    load_u8,
    put16,
    reads,
    scratch,
    spread_u8,
    store,
    store_u8,
    where,
    writes,
)

BLOCK, ROW, CODE = F32(32), F32(16), I32(16)
FOUR, FOUR_BITS = F32(4), I32(4)


def _rounded_up() -> npt.NDArray[np.int64]:
    """For each exponent of a float32, how many of the floats just below the next power of two have a binary logarithm
    that rounds to that power's: the reference takes floor(log2f(x)), which then is one too high."""
    power = np.arange(-126, 130).astype(np.float32)
    spacing = power.astype(np.float64) - np.nextafter(power, np.float32(-np.inf)).astype(np.float64)
    count: npt.NDArray[np.int64] = np.floor(spacing / 2 * 2**24 * np.log(2)).astype(np.int64)
    return count


ROUNDED_UP = _rounded_up()


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 32 * 17). The reference ignores `importance` as well."""
    _encode(x, out)


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 32 * 17) into out (rows, columns)."""
    _decode(data, out)


@inline
def step_of(e: Vector) -> Vector:
    """2**(e - 128), the first two of which are subnormal."""
    return as_float(where(e < 2, 0x00200000 << e, (e - 1) << 23))


@inline
def code(x: Vector, step: Vector, top: int) -> Vector:
    """The nearest code, at most `top`; half way it is the smaller magnitude, as the reference tries these first."""
    size = abs(x)
    found = CODE(size > 0.5 * step) + CODE(size > 1.5 * step) + CODE(size > 2.5 * step) + CODE(size > 3.5 * step)
    found += CODE(size > 5 * step) + CODE(size > 7 * step) + CODE(size > 10 * step)
    found = min(found, top)
    return where((x < 0) & (found > 0), found | 8, found)


@inline
def steps(c: Vector) -> Vector:
    """The number of steps that a code stands for."""
    low = c & 7
    size = where(low < 5, low, where(low == 7, 12, 2 * low - 4))
    return where(c > 7, -size, size)


@kernel(reads("float32"), writes("uint8"))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8]) -> None:
    largest = scratch(FOUR_BITS, 1)
    for at in range(x.size // 32):
        largest[0] = as_int(FOUR(highest(abs(load(BLOCK, x, 32 * at)))))
        size = largest[0, 0]
        e = max(((size + ROUNDED_UP[size >> 23]) >> 23) - 2, 0)
        step = step_of(CODE(e))
        top = 7 if e < 253 else 5  # there, 8 and 12 steps are beyond float32
        a, b = code(load(ROW, x, 32 * at), step, top), code(load(ROW, x, 32 * at + 16), step, top)
        put16(out, 17 * at, e)
        store_u8(out, 17 * at + 1, a | b << 4)


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    for at in range(out.size // 32):
        step = step_of(spread_u8(CODE, data, 17 * at))
        codes = load_u8(CODE, data, 17 * at + 1)
        store(out, 32 * at, step * ROW(steps(codes & 15)))
        store(out, 32 * at + 16, step * ROW(steps(codes >> 4)))
