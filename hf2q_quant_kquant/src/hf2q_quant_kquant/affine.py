"""Lossless repack of Q4_0, Q5_0, Q8_0 and Q4_K to MLX's affine form. numpy only.

MLX stores unsigned codes of `bits` bits and per group of 32 consecutive inputs a scale and a bias; a weight is
scale * code + bias. For these types that equals what GGUF decoding gives, evaluated in float32: products are exact and
the sum rounds once in both (the sign of a zero may differ). Scales and biases have up to 17 significant bits, so
float32 is the type that keeps them (mlx: `mx.quantized_matmul` takes it). Packing the codes into words is the backend's
business.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

GROUP = 32
"""Inputs that share a scale and a bias."""

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Affine(NamedTuple):
    """codes uint8 (rows, columns) in input order; scales and biases float32 (rows, columns / 32); bits per code."""

    codes: Bytes
    scales: Floats
    biases: Floats
    bits: int


def affine_q4_0(data: Bytes) -> Affine:
    """From Q4_0 bytes (rows, columns / 32 * 18): weight = d * code - 8 * d."""
    blocks = data.reshape(len(data), -1, 18)
    d = _halves(blocks, 0)
    return Affine(_nibbles(blocks[..., 2:]), d, -8 * d, 4)


def affine_q5_0(data: Bytes) -> Affine:
    """From Q5_0 bytes (rows, columns / 32 * 22): weight = d * code - 16 * d."""
    blocks = data.reshape(len(data), -1, 22)
    d = _halves(blocks, 0)
    fifth = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")
    codes = _nibbles(blocks[..., 6:]) + np.uint8(16) * fifth.reshape(len(data), -1)
    return Affine(codes, d, -16 * d, 5)


def affine_q8_0(data: Bytes) -> Affine:
    """From Q8_0 bytes (rows, columns / 32 * 34): weight = d * (code - 128), the code being the signed byte + 128."""
    blocks = data.reshape(len(data), -1, 34)
    d = _halves(blocks, 0)
    return Affine((blocks[..., 2:] ^ np.uint8(0x80)).reshape(len(data), -1), d, -128 * d, 8)


def affine_q4_k(data: Bytes) -> Affine:
    """From Q4_K bytes (rows, columns / 256 * 144): weight = (d * scale) * code - dmin * minimum."""
    rows = len(data)
    blocks = data.reshape(rows, -1, 144)
    d, dmin = _halves(blocks, 0)[..., None], _halves(blocks, 2)[..., None]
    # the three groups of four bytes are pictured in hf2q_quant_kquant.parts
    a, b, c = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=-1)
    minimums = np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=-1)
    codes = _nibbles(blocks[..., 16:].reshape(rows, -1, 4, 32))
    return Affine(codes, (d * scales).reshape(rows, -1), (-dmin * minimums).reshape(rows, -1), 4)


def _halves(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, as float32 (rows, blocks)."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(quants: Bytes) -> Bytes:
    """(rows, …, n) bytes to (rows, codes): the low halves of n bytes, then their high halves."""
    return np.concatenate([quants & 15, quants >> 4], axis=-1).reshape(len(quants), -1)
