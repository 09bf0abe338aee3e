"""Activations as signed bytes: one float32 scale for 32 inputs, codes within -127..127.

What a constant offset or minimum of the weights takes off a dot product is that constant times the sum of the
activations, so minus these sums are kept too, for 16 and for 32 inputs: of offsets as integers, to begin the exact
product with, of minimums as floats. All that belongs to 32 inputs is one record (see `job`), so that a kernel needs one
address for each row. The same records serve every qtype. A scale for 32 inputs is finer than the one for 256 that
llama.cpp uses with K-quants.
"""

from __future__ import annotations

from hf2q.backends.cpu.job import COLUMNS, COUNT, LOW_32, LOWS_16, RECORD, RECORDS, SCALE, SLICES, SUM_32, SUMS_16, X
from hf2q.backends.cpu.native import peek
from hf2q.simd import F32, I32, INT, Vector, as_int, highest, inline, kernel, load, put32, store, store_u8, total

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
def quantize_block(x: int, records: int, at: int) -> None:
    """32 inputs: number `at` of all blocks of all rows."""
    a, b = load(F, x, 128 * at), load(F, x, 128 * at + 64)
    largest = highest(max(abs(a), abs(b)))
    # an infinity or NaN anywhere must not vanish: it makes the scale NaN
    scale = largest / 127 + total((a + b) * 0)
    inverse = 127 / largest if largest > TINY else 0.0
    p, q = codes_of(a, inverse), codes_of(b, inverse)
    record = records + RECORD * at
    store_u8(record, 0, p)
    store_u8(record, 16, q)
    first, second = total(F(p)), total(F(q))  # exact: far below 2^24
    store(record, SCALE, ONE(scale))
    store(record, LOW_32, ONE(-scale * (first + second)))
    store(record, LOWS_16, ONE(-scale * first))
    store(record, LOWS_16 + 4, ONE(-scale * second))
    put32(record, SUMS_16, int(-32 * first))
    put32(record, SUMS_16 + 4, int(-32 * second))
    put32(record, SUM_32, int(-128 * (first + second)))


@kernel(INT, INT, INT)
def quantize(job: int, number: int, unused: int) -> None:
    """Slice `number` of the activations."""
    blocks = peek(job, COUNT) * (peek(job, COLUMNS) // 32)
    slices = peek(job, SLICES)
    x, records = peek(job, X), peek(job, RECORDS)
    for at in range(blocks * number // slices, blocks * (number + 1) // slices):
        quantize_block(x, records, at)
