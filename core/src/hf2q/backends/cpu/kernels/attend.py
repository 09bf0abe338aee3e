"""Attention in one pass over the keys: scores of sixteen keys at a time, softmax on the way.

A unit is one row of the batch, one key head, and as many query tokens as give up to 32 query rows (a token has one for
each query head that shares the key head). Sixteen keys are turned into a panel with one key per lane, so a score costs
one multiplication per number of the head, for sixteen keys at once, whether one token asks or many. Keys that no query
of the unit can see are not read. Every query row goes through the same steps alone, so batches do not change it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hf2q.backends.cpu.kernels.functions import exp
from hf2q.backends.cpu.native import peek
from hf2q.backends.cpu.team import Team, Work, Works, bits
from hf2q.backends.cpu.teamwork import DATA, take
from hf2q.simd import (
    F32,
    I32,
    INT,
    LANES,
    Vector,
    fma,
    highest,
    inline,
    kernel,
    load,
    numbers,
    scratch,
    spread,
    store,
    total,
    transpose,
    where,
)

F, I, ONE, ROW = F32(16), I32(16), F32(1), F32(LANES)  # noqa: E741

MOST_ROWS = 32
MOST_SIZE = 512
"""The largest head."""
NEVER = -math.inf

SMALL = 1 << 16
"""Multiplications of scores that are not worth waking a team for."""

# words of a job: arrays, then sizes and the bits of the scale
OUT, Q, ROWS, SINKS = 0, 1, 2, 3
BATCH, TOKENS, HEADS, GROUPS, SIZE, VALUES = 8, 9, 10, 11, 12, 13
CAUSAL, WINDOW, EACH, SCALE = 14, 15, 16, 17
# words of a row of the batch: `id` and bytes from head to head of keys and of values, number of keys, `id` of mask or 0
KEYS, KEY_STEP, VALUES_AT, VALUE_STEP, COUNT, MASK, ROW_WORDS = 0, 1, 2, 3, 4, 5, 6


@inline
def one_at(a: int, at: int) -> float:
    result: float = total(load(ONE, a, at))
    return result


@inline
def fill(panel: Vector, keys: int, size: int, first: int, count: int) -> None:
    """panel[d], lane l: number d of key first + l; spare lanes repeat the last key."""
    tile = scratch(ROW, LANES)
    for lane in range(0, 16, LANES):
        for d in range(0, size, LANES):
            for r in range(LANES):
                tile[r] = load(ROW, keys, 4 * (size * min(first + lane + r, count - 1) + d))
            transpose(tile, panel, d, lane)


@inline
def weigh(p: Vector, m: Vector, s: Vector, acc: Vector, r: int, score: Vector, chunks: int) -> None:
    """Take sixteen scores of query row r into its softmax: p[r] gets their weights, what was summed is rescaled."""
    before = m[r // 16, r % 16]
    best = max(before, highest(score))
    if best == NEVER:
        p[r] = F(0)
        return
    weights = exp(score - best)
    p[r] = weights
    shrink = total(exp(F(before - best))) / 16 if before != best else 1.0
    m[r // 16, r % 16] = best
    s[r // 16, r % 16] = s[r // 16, r % 16] * shrink + total(weights)
    if shrink != 1.0:
        for c in range(chunks):
            acc[32 * r + c] = acc[32 * r + c] * shrink


@inline
def visible(job: int, mask: int, count: int, t: int, at: int, first: int, score: Vector) -> Vector:
    """`score` with the mask added, and NEVER where key first + lane is hidden from query token t at position `at`."""
    place = numbers(I) + first
    if mask:
        row = mask + 4 * count * t
        spare = scratch(F, 1)
        spare[0] = F(0)
        for lane in range(min(16, count - first)):
            spare[0, lane] = one_at(row, 4 * (first + lane))
        score = score + spare[0]
    last = at if peek(job, CAUSAL) else count - 1
    hidden = place > min(last, count - 1)
    window = peek(job, WINDOW)
    score = where(hidden, NEVER, score)
    if window:
        score = where(place <= at - window, NEVER, score)
    return score


@kernel(INT, INT, INT)
def attend(job: int, member: int, team: int) -> None:
    tokens, heads, groups = peek(job, TOKENS), peek(job, HEADS), peek(job, GROUPS)
    size, values, each = peek(job, SIZE), peek(job, VALUES), peek(job, EACH)
    share = heads // groups
    blocks = (tokens + each - 1) // each
    chunks = values // 16
    scale, window = one_at(job, 8 * SCALE), peek(job, WINDOW)
    panel, acc, p = scratch(F, 512), scratch(F, 1024), scratch(F, 32)
    m, s, held = scratch(F, 2), scratch(F, 2), scratch(F, 16)
    unit = take(team, 0)
    while unit < peek(job, BATCH) * groups * blocks:
        # the last tokens see most keys: they go first, so that no member is left with the longest unit
        b, g, block = (
            unit % (peek(job, BATCH) * groups) // groups,
            unit % groups,
            blocks - 1 - unit // (peek(job, BATCH) * groups),
        )
        row = peek(job, ROWS) + 8 * ROW_WORDS * b
        keys = peek(peek(row, KEYS), DATA) + g * peek(row, KEY_STEP)
        vals = peek(peek(row, VALUES_AT), DATA) + g * peek(row, VALUE_STEP)
        count, mask = peek(row, COUNT), peek(row, MASK)
        if mask:
            mask = peek(mask, DATA)
        first_token, stop_token = block * each, min(tokens, block * each + each)
        rows = (stop_token - first_token) * share
        q = peek(job, Q) + 4 * size * ((b * tokens + first_token) * heads + g * share)
        for r in range(rows):
            sinks = peek(job, SINKS)
            m[r // 16, r % 16] = one_at(sinks, 4 * (g * share + r % share)) if sinks else NEVER
            s[r // 16, r % 16] = 1.0 if sinks else 0.0
            for c in range(chunks):
                acc[32 * r + c] = F(0)
        start = 0
        if window:
            start = max(0, count - tokens + first_token - window + 1) // 16 * 16
        stop = count - tokens + stop_token if peek(job, CAUSAL) else count
        for first in range(start, stop, 16):
            fill(panel, keys, size, first, count)
            for r in range(0, rows, 4):
                # four rows at once, the last repeated: sums that do not wait for each other
                r1, r2, r3 = min(r + 1, rows - 1), min(r + 2, rows - 1), min(r + 3, rows - 1)
                q0 = q + 4 * size * (r // share * heads + r % share)
                q1 = q + 4 * size * (r1 // share * heads + r1 % share)
                q2 = q + 4 * size * (r2 // share * heads + r2 % share)
                q3 = q + 4 * size * (r3 // share * heads + r3 % share)
                a0 = a1 = a2 = a3 = F(0)
                for d in range(size):
                    k, at = panel[d], 4 * d
                    a0, a1 = fma(k, spread(F, q0, at), a0), fma(k, spread(F, q1, at), a1)
                    a2, a3 = fma(k, spread(F, q2, at), a2), fma(k, spread(F, q3, at), a3)
                p[r] = a0 * scale
                p[r1] = a1 * scale
                p[r2] = a2 * scale
                p[r3] = a3 * scale
            for r in range(rows):
                t = first_token + r // share
                score = visible(job, mask, count, t, count - tokens + t, first, p[r])
                weigh(p, m, s, acc, r, score, chunks)
            for c in range(chunks):
                for k in range(16):
                    held[k] = load(F, vals, 4 * (values * min(first + k, count - 1) + 16 * c))
                for r in range(rows):
                    y, z = acc[32 * r + c], F(0)
                    for k in range(0, 16, 2):
                        y, z = fma(held[k], F(p[r, k]), y), fma(held[k + 1], F(p[r, k + 1]), z)
                    acc[32 * r + c] = y + z
        out = peek(job, OUT) + 4 * values * ((b * tokens + first_token) * heads + g * share)
        for r in range(rows):
            factor = 1 / s[r // 16, r % 16]
            for c in range(chunks):
                store(out, 4 * (values * (r // share * heads + r % share) + 16 * c), acc[32 * r + c] * factor)
        unit = take(team, 0)


def sizes(
    batch: int,
    tokens: int,
    heads: int,
    groups: int,
    size: int,
    values: int,
    scale: float,
    *,
    causal: bool = True,
    window: int = 0,
) -> tuple[int, ...]:
    """What stands behind the arrays of a job of `attend`."""
    each = min(tokens, max(1, MOST_ROWS // (heads // groups)))
    return batch, tokens, heads, groups, size, values, int(causal), window, each, bits(scale)


class Attention:
    """`attend` on arrays."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._works = Works()

    @staticmethod
    def fits(q: Any, keys: Sequence[Any], values: Sequence[Any]) -> bool:
        """Whether the kernel has room for heads of this size, and for the heads that share a key head."""
        size, width = int(q.shape[-1]), int(values[0].shape[-1])
        share = int(q.shape[2] // keys[0].shape[0])
        return size % 16 == 0 and width % 16 == 0 and max(size, width) <= MOST_SIZE and share <= MOST_ROWS

    def __call__(
        self,
        q: Any,
        keys: Sequence[Any],
        values: Sequence[Any],
        scale: float,
        causal: bool,
        window: int,
        sinks: Any,
        masks: Sequence[Any] | None,
    ) -> Any:
        """See `hf2q.backends.ops.Ops.attention`."""
        q = np.ascontiguousarray(q, np.float32)
        batch, tokens, heads, size = q.shape
        groups, width = keys[0].shape[0], values[0].shape[-1]
        out = np.empty((batch, tokens, heads, width), np.float32)
        alive = [(_rows(k), _rows(v)) for k, v in zip(keys, values, strict=True)]
        own = [None] * batch if masks is None else [np.ascontiguousarray(mask, np.float32) for mask in masks]
        rows = np.array(
            [
                (id(k), k.strides[0], id(v), v.strides[0], k.shape[1], 0 if mask is None else id(mask))
                for (k, v), mask in zip(alive, own, strict=True)
            ],
            np.int64,
        )
        longest = max(k.shape[1] for k, _ in alive)
        shared = batch * tokens * heads * size * longest > SMALL
        key = q.shape, groups, width, scale, causal, window, shared
        work = self._works.get(key)
        if work is None:
            of = sizes(batch, tokens, heads, groups, size, width, scale, causal=causal, window=window)
            work = self._works.keep(key, Work(attend, of, shared=shared))
        self._team.apply(work, id(out), id(q), id(rows), 0 if sinks is None else id(sinks))
        return out


def _rows(x: Any) -> Any:
    """Keys or values (G, S, D) whose heads are contiguous: buffers with spare room behind S are."""
    return x if x.strides[1:] == (4 * x.shape[2], 4) else np.ascontiguousarray(x)
