"""The search of Q3_K without importance: a first fit, then codes that move one by one to where the others want them.

Four sub-blocks of five are done after the first fit. The others wait in a queue until they fill the lanes of a vector,
so the slow part, in which each step needs the one before, runs on full vectors. Which sub-blocks wait is decided with a
margin: one that waits in vain comes out as it went in.
Source: make_q3_quants of ggml-quants.c (16 weights, codes -4..3).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hf2q.simd import F32, I32, WIDE, Vector, as_float, as_int, bits, columns, inline, scratch, where
from hf2q_quant_kquant.parts import MAGIC, TINY, F, larger

PLACES = 2 * WIDE
"""Sub-blocks in the queue when it is full: four registers, since the steps of a sweep leave the machine idle time."""
Q, N = F32(PLACES), I32(PLACES)
GROUPS = 4
"""Groups of WIDE super-blocks in one search: the queue runs empty, with idle lanes, at its end only."""


@inline
def search(x: npt.NDArray[np.float32], first: int, last: int, scales: Vector, searched: Vector) -> None:
    """For the sub-blocks j of GROUPS * WIDE super-blocks, those of group g being numbered from 16 * g: scales[j], and
    the codes that belong to it, 0..7, four bits each, in searched[2 * j] and searched[2 * j + 1]."""
    block, codes, sums = scratch(F, 16), scratch(F, 16), scratch(F, 2)
    queue, queue_codes, queue_sums, owners = scratch(Q, 16), scratch(Q, 16), scratch(Q, 2), scratch(N, 3)
    for k in range(16):
        queue[k] = queue_codes[k] = Q(0)
    queue_sums[0] = queue_sums[1] = Q(0)
    owners[2] = N(0)
    waiting = 0
    for j in range(16 * min(GROUPS, (last - first) // WIDE + 1)):
        columns(block, 16, x, 16 * (j & 15), 256, first + WIDE * (j >> 4), last)
        lanes = first_fit(block, codes, sums)
        scales[j] = finish(codes, sums, searched, 2 * j)
        for lane in range(WIDE):
            if lanes >> lane & 1:
                for k in range(16):
                    queue[k, waiting], queue_codes[k, waiting] = block[k, lane], codes[k, lane]
                for k in range(2):
                    queue_sums[k, waiting] = sums[k, lane]
                owners[0, waiting], owners[1, waiting], owners[2, waiting] = j, lane, 0
                waiting += 1
                while waiting == PLACES:  # until a place is free
                    waiting = serve(queue, queue_codes, queue_sums, owners, waiting, scales, searched)
    while waiting > 0:
        waiting = serve(queue, queue_codes, queue_sums, owners, waiting, scales, searched)


@inline
def serve(x: Vector, codes: Vector, sums: Vector, owners: Vector, count: int, scales: Vector, searched: Vector) -> int:
    """Sweep once over the `count` sub-blocks in the queue. Those that are done go to where they belong, the others to
    the head of the queue; their number."""
    scale, words = scratch(Q, 1), scratch(N, 2)
    moved = sweep(x, codes, sums)
    owners[2] = owners[2] + 1
    again = bits(moved & (owners[2] < 5) & unsettled(x, codes, sums[0], sums[1]))
    scale[0] = finish(codes, sums, words, 0)
    kept = 0
    for n in range(count):
        j, lane = owners[0, n], owners[1, n]
        if again >> n & 1:
            for k in range(16):
                x[k, kept], codes[k, kept] = x[k, n], codes[k, n]
            for k in range(2):
                sums[k, kept] = sums[k, n]
            for k in range(3):
                owners[k, kept] = owners[k, n]
            kept += 1
        else:
            scales[j, lane] = scale[0, n]
            searched[2 * j, lane], searched[2 * j + 1, lane] = words[0, n], words[1, n]
    return kept


@inline
def level(v: Vector) -> Vector:
    """Nearest integer clamped to -4..3, as a float. Beyond +-2**22 it wraps before the clamp, as the reference."""
    return as_float(min(max(as_int(v + MAGIC) & 0x7FFFFF, 0x400000 - 4), 0x400000 + 3) | 0x4B000000) - MAGIC


@inline
def first_fit(x: Vector, codes: Vector, sums: Vector) -> int:
    """Codes and the sums of their fit; which lanes may improve on it, as bits, lane 0 lowest."""
    size = most = F(0)
    for k in range(16):
        size, most = larger(size, most, x[k])
    inverse = -4 / most
    lx = ll = F(0)
    for k in range(16):
        c, w = where(size < TINY, F(-4), level(inverse * x[k])), x[k] * x[k]
        codes[k] = c
        lx += w * x[k] * c
        ll += w * c * c
    sums[0], sums[1] = where(size < TINY, 0, lx), where(size < TINY, 0, ll)
    # all products w * x * c have the sign of lx here: where that is negative, p is never positive
    lanes: int = bits(unsettled(x, codes, lx, ll) & (lx > 0) & (size >= TINY))
    return lanes


@inline
def unsettled(x: Vector, codes: Vector, lx: Vector, ll: Vector) -> Vector:
    """Where a code may move.

    The others want a code c to be v = x * (ll - w * c * c) / p with p = lx - w * x * c; it moves if v rounds to another
    number and p > 0. So c stays where |v - c| < 1/2, and v - c = (x * ll - c * lx) / p: a test without a division. Its
    rounding is below 0.0006 of p where p is at least a hundredth of lx; the margin is 0.001.
    """
    least, dominated = lx * 0 + 1, 0.01 * lx  # the first is one, in as many lanes
    for k in range(16):
        c = codes[k]
        p, distance = lx - x[k] * x[k] * x[k] * c, x[k] * ll - c * lx
        near = 0.499 * p
        # a code at an end of the range may be wanted beyond it
        stays = min(max(near + distance, -3.5 - c), max(near - distance, c - 2.5))
        least = min(least, min(stays, p - dominated))
    return ~((least >= 0) & (lx > 1e-30) & (lx < 1e30) & (ll < 1e30))


@inline
def sweep(x: Vector, codes: Vector, sums: Vector) -> Vector:
    """Let each code in turn move to where the others want it, if the fit gains by that; where any moved."""
    lx, ll = sums[0], sums[1]
    moved = lx < lx  # nowhere
    for k in range(16):
        c, w = codes[k], x[k] * x[k]
        p, r = lx - w * x[k] * c, ll - w * c * c
        new = level(x[k] * r / p)
        pn, rn = p + w * x[k] * new, r + w * new * new
        better = (p > 0) & (new != c) & (rn > 0) & (pn * pn * ll > lx * lx * rn)
        codes[k] = where(better, new, c)
        lx, ll = where(better, pn, lx), where(better, rn, ll)
        moved |= better
    sums[0], sums[1] = lx, ll
    return moved


@inline
def finish(codes: Vector, sums: Vector, words: Vector, at: int) -> Vector:
    """The scale; the codes, now 0..7, go to words[at] and words[at + 1]."""
    for word in range(2):
        nibbles = as_int(codes[8 * word] + (MAGIC + 4)) & 7
        for k in range(1, 8):
            nibbles |= (as_int(codes[8 * word + k] + (MAGIC + 4)) & 7) << 4 * k
        words[at + word] = nibbles
    return where(sums[1] > 0, sums[0] / sums[1], 0)
