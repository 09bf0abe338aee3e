"""Lossless repack of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K and Q5_K to MLX's affine form. numpy only.

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


def affine_q4_1(data: Bytes) -> Affine:
    """From Q4_1 bytes (rows, columns / 32 * 20): weight = d * code + m."""
    blocks = data.reshape(len(data), -1, 20)
    return Affine(_nibbles(blocks[..., 4:]), _halves(blocks, 0), _halves(blocks, 2), 4)


def affine_q5_0(data: Bytes) -> Affine:
    """From Q5_0 bytes (rows, columns / 32 * 22): weight = d * code - 16 * d."""
    blocks = data.reshape(len(data), -1, 22)
    d = _halves(blocks, 0)
    return Affine(_five_bits(blocks[..., 2:6], blocks[..., 6:]), d, -16 * d, 5)


def affine_q5_1(data: Bytes) -> Affine:
    """From Q5_1 bytes (rows, columns / 32 * 24): weight = d * code + m."""
    blocks = data.reshape(len(data), -1, 24)
    return Affine(_five_bits(blocks[..., 4:8], blocks[..., 8:]), _halves(blocks, 0), _halves(blocks, 2), 5)


def affine_q8_0(data: Bytes) -> Affine:
    """From Q8_0 bytes (rows, columns / 32 * 34): weight = d * (code - 128), the code being the signed byte + 128."""
    blocks = data.reshape(len(data), -1, 34)
    d = _halves(blocks, 0)
    return Affine((blocks[..., 2:] ^ np.uint8(0x80)).reshape(len(data), -1), d, -128 * d, 8)


def affine_q4_k(data: Bytes) -> Affine:
    """From Q4_K bytes (rows, columns / 256 * 144): weight = (d * scale) * code - dmin * minimum."""
    blocks = data.reshape(len(data), -1, 144)
    return Affine(_nibbles(_quarters(blocks[..., 16:])), *_head(blocks), 4)


def affine_q5_k(data: Bytes) -> Affine:
    """From Q5_K bytes (rows, columns / 256 * 176): weight = (d * scale) * code - dmin * minimum."""
    blocks = data.reshape(len(data), -1, 176)
    # bit j of a byte belongs to sub-block j: bits first, then the 32 weights
    fifth = np.unpackbits(blocks[..., 16:48, None], axis=-1, bitorder="little").swapaxes(-1, -2)
    codes = _nibbles(_quarters(blocks[..., 48:])) + np.uint8(16) * fifth.reshape(len(data), -1)
    return Affine(codes, *_head(blocks), 5)


def _head(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and biases of Q4_K and Q5_K blocks (rows, blocks, bytes); see hf2q_quant_kquant.six_bits."""
    d, dmin = _halves(blocks, 0)[..., None], _halves(blocks, 2)[..., None]
    a, b, c = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=-1)
    minimums = np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=-1)
    return (d * scales).reshape(len(blocks), -1), (-dmin * minimums).reshape(len(blocks), -1)


def _quarters(quants: Bytes) -> Bytes:
    """(rows, blocks, 128) to (rows, blocks, 4, 32): each 32 bytes hold two sub-blocks."""
    return quants.reshape(len(quants), -1, 4, 32)


def _five_bits(fifth: Bytes, quants: Bytes) -> Bytes:
    """Codes of Q5_0 and Q5_1 from (rows, blocks, 4) bytes of fifth bits and (rows, blocks, 16) of nibbles."""
    bits = np.unpackbits(fifth, axis=-1, bitorder="little")
    return _nibbles(quants) + np.uint8(16) * bits.reshape(len(quants), -1)


def _halves(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, as float32 (rows, blocks)."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(quants: Bytes) -> Bytes:
    """(rows, …, n) bytes to (rows, codes): the low halves of n bytes, then their high halves."""
    return np.concatenate([quants & 15, quants >> 4], axis=-1).reshape(len(quants), -1)
