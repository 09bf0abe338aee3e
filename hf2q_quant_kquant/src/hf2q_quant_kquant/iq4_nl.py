"""IQ4_NL: 32 weights in 18 bytes: a float16 scale d, then 16 bytes of codes for the numbers in `iq4`.

Layout: block_iq4_nl of ggml/src/ggml-common.h; bytes: quantize_iq4_nl of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import WIDE, columns, from_half, kernel, put16, reads, scratch, spread_u16, to_half, where, writes
from hf2q_quant_kquant.importance import given, place, weigh
from hf2q_quant_kquant.iq4 import CODE, put_codes, put_weights, search
from hf2q_quant_kquant.parts import F, I


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 32 * 18), with importance (columns,) or None."""
    _encode(x, out, given(importance))


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 32 * 18) into out (rows, columns)."""
    _decode(data, out)


@kernel(reads("float32"), writes("uint8"), reads("float32", 1))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32]) -> None:
    last = x.size // 32 - 1
    block, w, inverse, half, places = scratch(F, 32), scratch(F, 32), scratch(F, 1), scratch(I, 1), scratch(I, 1)
    for first in range(0, last + 1, WIDE):  # one block per lane; spare lanes repeat the last one
        columns(block, 32, x, 0, 32, first, last)
        square = F(0)
        for k in range(32):
            w[k] = block[k] * block[k]
            square += w[k]
        if importance.size > 0:
            place(places, importance, 32, first, last)
            weigh(w, block, 32, importance, places, 0, square * (2 / 32))
        d = search(block, w)
        half[0], inverse[0] = to_half(d), where(d == 0, 0, 1 / d)
        for lane in range(WIDE):
            at = min(first + lane, last)
            put16(out, 18 * at, half[0, lane])
            put_codes(out, 18 * at + 2, x, 32 * at, inverse[0, lane])


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    for at in range(out.size // 32):
        put_weights(out, 32 * at, data, 18 * at + 2, from_half(spread_u16(CODE, data, 18 * at)))
