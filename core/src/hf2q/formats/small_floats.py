"""The values of 8- and 4-bit floats, as tables by code. numpy only.

    E4M3   sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity, NaN where all seven low bits are set
    E8M0   an exponent alone: 2^(code - 127); 255 is NaN
    E2M1   sign, 2 bits of exponent (bias 1), 1 of mantissa; neither infinity nor NaN

Every value is exact in float32 (2^-127 as a subnormal number). Sources: OCP 8-bit Floating Point Specification 1.0
(E4M3); OCP Microscaling Formats Specification 1.0 (E8M0, E2M1).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hf2q.types import Float32


@cache
def e4m3() -> Float32:
    """float32 (256,); NaN at 0x7F and 0xFF."""
    values = _signed(exponent_bits=4, mantissa_bits=3, bias=7)
    values[[0x7F, 0xFF]] = np.nan
    return _frozen(values)


@cache
def e8m0() -> Float32:
    """float32 (256,); NaN at 255."""
    powers = np.ldexp(1.0, np.arange(255) - 127)
    return _frozen(np.append(powers, np.nan).astype(np.float32))


@cache
def e2m1() -> Float32:
    """float32 (16,)."""
    return _frozen(_signed(exponent_bits=2, mantissa_bits=1, bias=1))


@cache
def e2m1_pairs() -> Float32:
    """float32 (256, 2): the two E2M1 values of a byte, that of the low nibble first."""
    codes = np.arange(256)
    return _frozen(np.stack([e2m1()[codes & 15], e2m1()[codes >> 4]], axis=1))


def _signed(*, exponent_bits: int, mantissa_bits: int, bias: int) -> Float32:
    half = np.arange(1 << (exponent_bits + mantissa_bits))
    exponent, mantissa = half >> mantissa_bits, half & ((1 << mantissa_bits) - 1)
    # exponent 0 marks subnormals: no leading one, and the power of two of exponent 1
    significand = np.where(exponent > 0, (1 << mantissa_bits) + mantissa, mantissa)
    values = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa_bits)
    return np.concatenate([values, -values]).astype(np.float32)


def _frozen(values: Float32) -> Float32:
    values.flags.writeable = False
    return values
