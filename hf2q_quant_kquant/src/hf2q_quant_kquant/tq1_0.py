"""TQ1_0: 256 weights in 54 bytes: 52 bytes of base-3 digits, then a float16 scale d; a weight is d * (digit - 1).

A byte holds five digits as the fraction ceil(digits * 256 / 3**5), from which multiplying by 3 takes the first digit
out at the top. 32 bytes hold five rows of 32 weights, one digit from each; 16 bytes hold five rows of 16; the last 4
hold four rows of 4 and a fifth digit of 0.
Layout: block_tq1_0 of ggml/src/ggml-common.h; bytes: quantize_row_tq1_0_ref of ggml/src/ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import (
    F32,
    I32,
    Vector,
    from_half,
    inline,
    kernel,
    load,
    load_u8,
    put16,
    reads,
    scratch,
    spread_u16,
    store,
    store_u8,
    writes,
)
from hf2q_quant_kquant.ternary import CODE, FOUR, FOUR_BITS, ROW, inverse_of, scale_of, trits

HALF, HALF_CODE = F32(16), I32(16)


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 256 * 54). The reference ignores `importance` as well."""
    _encode(x, out)


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 256 * 54) into out (rows, columns)."""
    _decode(data, out)


@inline
def fraction(digits: Vector) -> Vector:
    """ceil(digits * 256 / 243) for a number of five digits: the byte that stores it."""
    return (digits * 8631 + 8100) >> 13


@inline
def digit(byte: Vector, n: int) -> Vector:
    """Digit n, counted from the top, of stored bytes; whatever was not written by `fraction` gives 0 to 2 as well."""
    return (byte * 3**n & 255) * 3 >> 8


@kernel(reads("float32"), writes("uint8"))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8]) -> None:
    head = scratch(FOUR_BITS, 1)
    for at in range(x.size // 256):
        d = scale_of(x, 256 * at, head)
        a, b, c = CODE(0), HALF_CODE(0), FOUR_BITS(0)
        for n in range(5):
            a = 3 * a + trits(load(ROW, x, 256 * at + 32 * n) * inverse_of(ROW(d)), CODE(1))
            b = 3 * b + trits(load(HALF, x, 256 * at + 160 + 16 * n) * inverse_of(HALF(d)), HALF_CODE(1))
        for n in range(4):
            c = 3 * c + trits(load(FOUR, x, 256 * at + 240 + 4 * n) * inverse_of(FOUR(d)), FOUR_BITS(1))
        store_u8(out, 54 * at, fraction(a))
        store_u8(out, 54 * at + 32, fraction(b))
        store_u8(out, 54 * at + 48, fraction(3 * c))
        put16(out, 54 * at + 52, head[0, 0])


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    for at in range(out.size // 256):
        d = from_half(spread_u16(CODE, data, 54 * at + 52))
        e, f = (
            from_half(spread_u16(HALF_CODE, data, 54 * at + 52)),
            from_half(spread_u16(FOUR_BITS, data, 54 * at + 52)),
        )
        a, b, c = (
            load_u8(CODE, data, 54 * at),
            load_u8(HALF_CODE, data, 54 * at + 32),
            load_u8(FOUR_BITS, data, 54 * at + 48),
        )
        for n in range(5):
            store(out, 256 * at + 32 * n, d * ROW(digit(a, n) - 1))
            store(out, 256 * at + 160 + 16 * n, e * HALF(digit(b, n) - 1))
        for n in range(4):
            store(out, 256 * at + 240 + 4 * n, f * FOUR(digit(c, n) - 1))
