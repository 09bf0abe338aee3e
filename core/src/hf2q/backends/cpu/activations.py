"""Activations as signed bytes: one float32 scale for 32 inputs, codes within -127..127.

What a constant offset or minimum of the weights takes off a dot product is that constant times the sum of the
activations, so minus these sums are kept too, for 16 and for 32 inputs. The same codes serve every qtype. A scale for
32 inputs is finer than the one for 256 that llama.cpp uses with K-quants.
"""

from __future__ import annotations

from hf2q.backends.cpu.job import CODES, COLUMNS, COUNT, LOWS_16, LOWS_32, SCALES, SLICES, X
from hf2q.backends.cpu.native import peek
from hf2q.simd import F32, I32, INT, Vector, as_int, highest, inline, kernel, load, store, store_u8, total

F, I = F32(16), I32(16)  # noqa: E741
ONE = F32(1)
ROUND = 12582912.0
"""1.5 · 2^23: added to a small float it leaves the nearest integer in the low bits, ties to even."""


TINY = 1e-30
"""Largest magnitudes below this are taken as zero: their reciprocal would overflow."""


@inline
def codes_of(x: Vector, inverse: float) -> Vector:
    return as_int(x * inverse + ROUND) - 0x4B400000


@inline
def quantize_block(x: int, codes: int, at: int, job: int) -> None:
    """32 inputs: number `at` of all blocks of all rows."""
    a, b = load(F, x, 128 * at), load(F, x, 128 * at + 64)
    largest = highest(max(abs(a), abs(b)))
    # an infinity or NaN anywhere must not vanish: it makes the scale NaN
    scale = largest / 127 + total((a + b) * 0)
    inverse = 127 / largest if largest > TINY else 0.0
    p, q = codes_of(a, inverse), codes_of(b, inverse)
    store_u8(codes, 32 * at, p)
    store_u8(codes, 32 * at + 16, q)
    first, second = total(F(p)), total(F(q))  # exact: far below 2^24
    store(peek(job, SCALES), 4 * at, ONE(scale))
    lows = peek(job, LOWS_16)
    store(lows, 8 * at, ONE(-scale * first))
    store(lows, 8 * at + 4, ONE(-scale * second))
    store(peek(job, LOWS_32), 4 * at, ONE(-scale * (first + second)))


@kernel(INT, INT, INT)
def quantize(job: int, number: int, unused: int) -> None:
    """Slice `number` of the activations."""
    blocks = peek(job, COUNT) * (peek(job, COLUMNS) // 32)
    slices = peek(job, SLICES)
    x, codes = peek(job, X), peek(job, CODES)
    for at in range(blocks * number // slices, blocks * (number + 1) // slices):
        quantize_block(x, codes, at, job)
