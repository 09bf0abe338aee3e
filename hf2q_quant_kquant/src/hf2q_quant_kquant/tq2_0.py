"""TQ2_0: 256 weights in 66 bytes: 64 bytes of two-bit codes, then a float16 scale d; a weight is d * (code - 1).

Each half of 128 weights, taken as four rows of 32, shares 32 bytes: row n lies in bits 2n and 2n + 1.
Layout: block_tq2_0 of ggml/src/ggml-common.h; bytes: quantize_row_tq2_0_ref of ggml/src/ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import (
    from_half,
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
from hf2q_quant_kquant.ternary import CODE, FOUR_BITS, ROW, inverse_of, scale_of, trits


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 256 * 66). The reference ignores `importance` as well."""
    _encode(x, out)


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 256 * 66) into out (rows, columns)."""
    _decode(data, out)


@kernel(reads("float32"), writes("uint8"))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8]) -> None:
    head = scratch(FOUR_BITS, 1)
    for at in range(x.size // 256):
        inverse = inverse_of(ROW(scale_of(x, 256 * at, head)))
        for half in range(2):
            codes = CODE(0)
            for n in range(4):
                codes |= trits(load(ROW, x, 256 * at + 128 * half + 32 * n) * inverse, CODE(1)) << 2 * n
            store_u8(out, 66 * at + 32 * half, codes)
        put16(out, 66 * at + 64, head[0, 0])


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    for at in range(out.size // 256):
        d = from_half(spread_u16(CODE, data, 66 * at + 64))
        for half in range(2):
            codes = load_u8(CODE, data, 66 * at + 32 * half)
            for n in range(4):
                store(out, 256 * at + 128 * half + 32 * n, d * ROW((codes >> 2 * n & 3) - 1))
