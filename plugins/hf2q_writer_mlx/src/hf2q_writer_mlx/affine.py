"""MLX's affine quantization: codes of `bits` bits, and a scale and a bias for each group of weights. numpy only.

A weight is scale * code + bias. Codes of a row are a stream of bits, the lowest first, in which a group takes a whole
number of 32-bit words. Here the bytes of a group lie together, codes, scale, bias, so that a row can be cut anywhere
between groups; `hf2q_writer_mlx.writer` puts them into three tensors.

Source: mlx, mlx/backend/cpu/quantized.cpp, `quantize` (affine mode); the arithmetic is float32 whatever the weights
are, and scale and bias are rounded once, at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hf2q.formats.floats import bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32

SMALLEST = np.float32(1e-7)
"""The least step between two codes."""

SIZES = {"F32": 4, "F16": 2, "BF16": 2}
"""Types of scales and biases, and their bytes."""


def group_bytes(bits: int, group: int, scales: str) -> int:
    """Bytes of one group: its codes, then scale and bias."""
    return group * bits // 8 + 2 * SIZES[scales]


def quantize(x: Float32, bits: int, group: int) -> tuple[Bytes, Float32, Float32]:
    """Codes uint8 (groups, group), scales and biases float32 (groups,) of x, finite, whose size is groups * group.

    The end of the range that is farther from zero is hit exactly, and zero has a code of its own where it can.
    """
    w = x.reshape(-1, group)
    high, low = w.max(axis=1), w.min(axis=1)
    last = np.float32((1 << bits) - 1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what overflows is refused by the caller
        downward = np.abs(low) > np.abs(high)
        scale = np.maximum((high - low) / last, SMALLEST)
        scale = np.where(downward, scale, -scale)
        edge = np.where(downward, low, high)
        zero = np.rint(edge / scale)
        moved = zero != 0
        scale = np.where(moved, edge / np.where(moved, zero, 1), scale).astype(np.float32, copy=False)
        bias = np.where(moved, edge, np.float32(0))
        codes = np.rint((w - bias[:, None]) / scale[:, None])
        np.clip(codes, 0, last, out=codes)
        return codes.astype(np.uint8), scale, bias


def pack(codes: Bytes, scales: Float32, biases: Float32, bits: int, kind: str, out: Bytes) -> None:
    """Write groups into `out`, uint8 (groups, `group_bytes`). codes (groups, group); scales and biases (groups,)."""
    packed = pack_codes(codes, bits)
    size, own = packed.shape[1], SIZES[kind]
    out[:, :size] = packed
    out[:, size : size + own] = _stored(scales, kind)
    out[:, size + own :] = _stored(biases, kind)


def unpack(data: Bytes, bits: int, kind: str) -> tuple[Bytes, Float32, Float32]:
    """The opposite of `pack`: codes, scales, biases of uint8 (groups, `group_bytes`)."""
    return unpack_codes(data[:, : -2 * SIZES[kind]], bits), *unpack_scales(data, kind)


def unpack_scales(data: Bytes, kind: str) -> tuple[Float32, Float32]:
    """Scales and biases alone."""
    own = SIZES[kind]
    return _loaded(data[:, -2 * own : -own], kind), _loaded(data[:, -own:], kind)


def pack_codes(codes: Bytes, bits: int) -> Bytes:
    """(n, group) codes as (n, group * bits / 8) bytes."""
    if bits == 8:
        return codes
    if bits in (2, 4):
        every = 8 // bits
        out: Bytes = codes[:, 0::every].copy()
        for at in range(1, every):
            out |= np.left_shift(codes[:, at::every], np.uint8(at * bits))
        return out
    stream = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    return np.packbits(stream.reshape(len(codes), -1), axis=-1, bitorder="little")


def unpack_codes(packed: Bytes, bits: int) -> Bytes:
    """The opposite of `pack_codes`."""
    stream = np.unpackbits(np.ascontiguousarray(packed), axis=-1, bitorder="little")
    return np.packbits(stream.reshape(len(packed), -1, bits), axis=-1, bitorder="little")[..., 0]


def _stored(values: Float32, kind: str) -> Bytes:
    found: npt.NDArray[np.generic] = values
    if kind == "BF16":
        found = f32_to_bf16(values)
    elif kind == "F16":
        found = f32_to_f16(values)
    return np.ascontiguousarray(found).view(np.uint8).reshape(len(values), -1)


def _loaded(data: Bytes, kind: str) -> Float32:
    data = np.ascontiguousarray(data)
    if kind == "BF16":
        return bf16_to_f32(data.view(np.uint16)[:, 0])
    return f16_to_f32(data.view(np.float16)[:, 0]) if kind == "F16" else data.view(np.float32)[:, 0].copy()
