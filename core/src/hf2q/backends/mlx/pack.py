"""Packing codes into the bit stream that MLX's affine quantization reads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """Codes uint8 (rows, columns), each below 2^bits -> uint32 (rows, columns · bits / 32), lowest bit first.

    `columns` is a multiple of 32, so that rows end at a word. Source: MLX, mlx/backend/cpu/quantized.cpp.
    """
    rows = codes.shape[0]
    packed: NDArray[np.uint8]
    if bits == 8:
        packed = np.ascontiguousarray(codes)
    elif bits == 4:
        packed = codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4))
    else:
        stream = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little").reshape(rows, -1)
        packed = np.packbits(stream, axis=-1, bitorder="little")
    return packed.view("<u4")
