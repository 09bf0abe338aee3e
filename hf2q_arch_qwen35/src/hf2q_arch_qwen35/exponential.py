"""exp of float32 with the very bits that llama.cpp's converter writes.

The converter calls ``torch.exp``, which on x86-64 is the vector math of MKL: close to the nearest float32, but off by
one unit in the last place for one value in a hundred. Equal files need equal bits, so the same steps are taken here: a
table of 128 powers of two in two parts, a second-degree polynomial, all in float32 without fused operations. That
these are the steps was found by comparing results: torch 2.13 (x86-64, AVX-512) agrees on all of 2 * 10^7 random
values from -87 to 87 and on every bfloat16 value in that range. Plain float32 arithmetic is the same on every machine.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hf2q.types import Float32

STEPS = 128
HIGH, LOW = np.float32(355 / 65536), np.float32(-1.6577690757912933e-06)
"""ln 2 / 128 in two parts; the first has so few bits that its multiples are exact."""

LIMIT = 87.0
"""Beyond it results overflow or lose bits; there the nearest value is taken."""


def exp(x: Float32) -> Float32:
    """exp of each value, float32 of the same shape; overflows to infinity, NaN stays NaN."""
    nearest = _nearest(x)
    usual = np.abs(x) <= LIMIT
    value = np.where(usual, x, np.float32(0))
    count = np.rint(value * np.float32(STEPS / np.log(2)))
    rest = (value - count * HIGH) - count * LOW
    power = rest + rest * rest * np.float32(0.5)
    step = count.astype(np.int32)
    high, low = (table[step % STEPS] for table in _table())
    found = np.ldexp(high + (low + high * power), step // STEPS)
    return np.where(usual, found, nearest)


def _nearest(x: Float32) -> Float32:
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(x.astype(np.float64)).astype(np.float32)


def _table() -> tuple[Float32, Float32]:
    """2^(k/128) as the nearest float32 and what is missing to it; from decimals, so that no libm decides."""
    high, low = np.empty(STEPS, np.float32), np.empty(STEPS, np.float32)
    with localcontext() as context:
        context.prec = 40
        for k in range(STEPS):
            exact = Decimal(2) ** (Decimal(k) / STEPS)
            high[k] = float(exact)
            low[k] = float(exact - Decimal(float(high[k])))
    return high, low
