"""Q8_0: 32 weights in 34 bytes: a float16 scale d, then 32 signed bytes; a weight is d * code.

Layout: block_q8_0 of ggml/src/ggml-common.h; bytes: quantize_row_q8_0_ref of ggml/src/ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import (
    F32,
    I32,
    WIDE,
    columns,
    from_half,
    kernel,
    load,
    load_i8,
    put16,
    reads,
    scratch,
    spread_u16,
    store,
    store_u8,
    to_half,
    where,
    writes,
)
from hf2q_quant_kquant.parts import LARGEST, F, I

ROW, CODE = F32(32), I32(32)
HALF = 0.49999997
"""The largest float below 1/2: truncating x + HALF rounds halves away from zero."""


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 32 * 34). The reference ignores `importance` as well."""
    _encode(x, out)


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 32 * 34) into out (rows, columns)."""
    _decode(data, out)


@kernel(reads("float32"), writes("uint8"))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8]) -> None:
    last = x.size // 32 - 1
    block, inverse, half = scratch(F, 32), scratch(F, 1), scratch(I, 1)
    for first in range(0, last + 1, WIDE):  # one block per lane; spare lanes repeat the last one
        columns(block, 32, x, 0, 32, first, last)
        top = F(0)
        for k in range(32):
            top = max(top, abs(block[k]))
        d = top / 127
        # an infinite inverse gives codes of 0 in the reference: its conversion to a byte overflows to 0
        inverse[0] = where((d > 0) & (1 / d <= LARGEST), 1 / d, 0)
        half[0] = to_half(d)
        for lane in range(WIDE):
            at = min(first + lane, last)
            put16(out, 34 * at, half[0, lane])
            v = load(ROW, x, 32 * at) * inverse[0, lane]
            store_u8(out, 34 * at + 2, CODE(v + where(v < 0, -HALF, ROW(HALF))))


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    for at in range(out.size // 32):
        d = from_half(spread_u16(CODE, data, 34 * at))
        store(out, 32 * at, d * ROW(load_i8(CODE, data, 34 * at + 2)))
