"""IQ4_XS: 256 weights in 136 bytes.

Eight sub-blocks of 32 weights; a weight is d * scale * number with the numbers in `iq4` and a scale in -32..31 per
sub-block. Bytes: d as float16; the high bit pairs of the scales + 32, sub-block j at bit 2 * j of 16; their low halves,
an even sub-block in the low half of a byte; 16 bytes of codes for each sub-block.
Layout: block_iq4_xs of ggml/src/ggml-common.h; bytes: quantize_iq4_xs of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import (
    F32,
    I32,
    WIDE,
    Vector,
    columns,
    from_half,
    inline,
    kernel,
    lshr,
    numbers,
    put32,
    reads,
    scratch,
    spread,
    spread_u16,
    to_half,
    where,
    writes,
)
from hf2q_quant_kquant.importance import given, place, squares, weigh
from hf2q_quant_kquant.iq4 import ROW, put_codes, put_weights, search
from hf2q_quant_kquant.parts import F, I, larger
from hf2q_quant_kquant.scales import unsigned_code

EIGHT, EIGHT_BITS = F32(8), I32(8)


def encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32] | None) -> None:
    """Encode x (rows, columns) into out (rows, columns / 256 * 136), with importance (columns,) or None."""
    _encode(x, out, given(importance))


def decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    """Decode data (rows, columns / 256 * 136) into out (rows, columns)."""
    _decode(data, out)


@kernel(reads("float32"), writes("uint8"), reads("float32", 1))
def _encode(x: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], importance: npt.NDArray[np.float32]) -> None:
    last = x.size // 256 - 1
    block, w, scales, head, places = scratch(F, 32), scratch(F, 32), scratch(F, 8), scratch(I, 2), scratch(I, 1)
    for first in range(0, last + 1, WIDE):  # one super-block per lane; spare lanes repeat the last one
        variance = F(0)
        if importance.size > 0:
            place(places, importance, 256, first, last)
            variance = squares(block, x, first, last) * (2 / 256)
        for j in range(8):
            columns(block, 32, x, 32 * j, 256, first, last)
            if importance.size > 0:
                weigh(w, block, 32, importance, places, 32 * j, variance)
            else:
                for k in range(32):
                    w[k] = block[k] * block[k]
            scales[j] = search(block, w)
        pack_head(head, scales)
        for lane in range(WIDE):
            at = min(first + lane, last)
            put32(out, 136 * at, head[0, lane])
            put32(out, 136 * at + 4, head[1, lane])
            for j in range(8):
                put_codes(out, 136 * at + 8 + 16 * j, x, 256 * at + 32 * j, scales[j, lane])


@inline
def pack_head(head: Vector, scales: Vector) -> None:
    """The first 8 bytes of the blocks as words; scales become the inverses that the codes are made with. Those follow
    from d before it is rounded to a half."""
    size = most = F(0)
    for j in range(8):
        size, most = larger(size, most, scales[j])
    d = -most / 32
    inverse = where(d == 0, 0, 1 / d)
    head[0], head[1] = to_half(d), I(0)
    for j in range(8):
        s = unsigned_code(inverse * scales[j], 32)
        head[0] = head[0] | s >> 4 << 16 + 2 * j
        head[1] = head[1] | (s & 15) << 4 * j
        step = d * F(s - 32)
        scales[j] = where(step == 0, 0, 1 / step)


@kernel(reads("uint8"), writes("float32"))
def _decode(data: npt.NDArray[np.uint8], out: npt.NDArray[np.float32]) -> None:
    scales = scratch(EIGHT, 1)
    n = numbers(EIGHT_BITS)
    for at in range(out.size // 256):
        high = lshr(spread_u16(EIGHT_BITS, data, 136 * at + 2), 2 * n) & 3
        low = lshr(spread(EIGHT_BITS, data, 136 * at + 4), 4 * n) & 15
        scales[0] = from_half(spread_u16(EIGHT_BITS, data, 136 * at)) * EIGHT((low | high << 4) - 32)
        for j in range(8):
            put_weights(out, 256 * at + 32 * j, data, 136 * at + 8 + 16 * j, ROW(scales[0, j]))
