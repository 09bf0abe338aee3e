"""A layer with attention, for a few tokens, as one chain of kernels: norm, products, heads, attention, gate, product.

Of its own it has two kernels. `heads` takes what the first products give: it norms and turns queries and keys, and puts
keys and values where the caches of the rows want them. `open_gates` comes after attention, which is `attend`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hf2q.backends.cpu.kernels import attend as a
from hf2q.backends.cpu.kernels import functions
from hf2q.backends.cpu.kernels.chain import Chain, Chains, Needs, Patch, chained
from hf2q.backends.cpu.kernels.elementwise import Elementwise
from hf2q.backends.cpu.kernels.rowwise import copied, put_row, rms_rows, root, rows_work, squares, turn
from hf2q.backends.cpu.memory import address
from hf2q.backends.cpu.native import peek
from hf2q.backends.cpu.team import Team, Work, bits
from hf2q.backends.cpu.teamwork import DATA, take
from hf2q.simd import F32, INT, inline, kernel, load, store

if TYPE_CHECKING:
    from hf2q.backends.cache import KVCache
    from hf2q.backends.cpu.linear import Linear
    from hf2q.backends.cpu.matrix import Matrix
    from hf2q.backends.ops import AttentionWeights
    from hf2q.types import Shape

F, ONE = F32(16), F32(1)

# arrays of a job of `heads`, then sizes and the bits of eps; `ROWS` are those of `attend`
Q, BOTH, K, V, Q_NORM, K_NORM, COS, SIN = 0, 1, 2, 3, 4, 5, 6, 7
ROWS, BATCH, TOKENS, HEADS, GROUPS, SIZE, TURNED, EPS, STEP = 8, 9, 10, 11, 12, 13, 14, 15, 16


@inline
def head(x: int, out: int, size: int, weight: int, eps: float, cos: int, sin: int, turned: int) -> None:
    """RMS norm and rotary positions of one head."""
    factor = 1 / root(squares(x, size, 0.0) / size + eps)
    put_row(x, out, size, weight, 0, 0.0, factor)
    k = 0
    while k + 16 <= turned:
        turn(F, out, out, 4 * turned, cos, sin, 4 * k)
        k += 16
    while k < turned:
        turn(ONE, out, out, 4 * turned, cos, sin, 4 * k)
        k += 1


@kernel(INT, INT, INT)
def heads(job: int, member: int, team: int) -> None:
    """Queries stand `STEP` numbers apart, since there may be a gate behind each."""
    tokens, count, groups, size = peek(job, TOKENS), peek(job, HEADS), peek(job, GROUPS), peek(job, SIZE)
    turned, step, eps = peek(job, TURNED), peek(job, STEP), a.one_at(job, 8 * EPS)
    each = count + groups
    unit = take(team, 0)
    while unit < peek(job, BATCH) * tokens:
        row = peek(job, ROWS) + 8 * a.ROW_WORDS * (unit // tokens)
        cos, sin = peek(job, COS) + 4 * turned * unit, peek(job, SIN) + 4 * turned * unit
        place = peek(row, a.COUNT) - tokens + unit % tokens
        for h in range(each):
            if h < count:
                x = peek(job, BOTH) + 4 * step * (unit * count + h)
                out = peek(job, Q) + 4 * size * (unit * count + h)
                head(x, out, size, peek(job, Q_NORM), eps, cos, sin, turned)
            else:
                g = h - count
                x, at = 4 * size * (unit * groups + g), 4 * size * place
                out = peek(peek(row, a.KEYS), DATA) + g * peek(row, a.KEY_STEP) + at
                head(peek(job, K) + x, out, size, peek(job, K_NORM), eps, cos, sin, turned)
                out = peek(peek(row, a.VALUES_AT), DATA) + g * peek(row, a.VALUE_STEP) + at
                copied(peek(job, V) + x, out, 0, size)
        unit = take(team, 0)


@kernel(INT, INT, INT)
def open_gates(job: int, member: int, team: int) -> None:
    """Arrays: 0 what attention gives, changed in place; 1 queries, each with its gate behind it. Sizes: 8 their number,
    9 D."""
    out, both, count, size = peek(job, 0), peek(job, 1), peek(job, 8), peek(job, 9)
    unit = take(team, 0)
    while unit < count:
        x, gate = out + 4 * size * unit, both + 4 * size * (2 * unit + 1)
        for k in range(0, 4 * size, 64):
            store(x, k, load(F, x, k) * functions.sigmoid(load(F, gate, k)))
        unit = take(team, 0)


class AttentionLayer:
    """`hf2q.backends.ops.Ops.attention_layer` for numbers of tokens that are `chained`."""

    def __init__(self, team: Team, linear: Linear, each: Elementwise) -> None:
        self._team, self._linear, self._each = team, linear, each
        self._chains = Chains()

    @staticmethod
    def fits(x: Any, weights: AttentionWeights) -> bool:
        """Whether the chain can do it: x (B, T, C)."""
        size, share = weights.head_dim, weights.heads // weights.kv_heads
        return chained(math.prod(x.shape[:2])) and size % 16 == 0 and size <= a.MOST_SIZE and share <= a.MOST_ROWS

    def __call__(self, x: Any, weights: AttentionWeights, rotation: tuple[Any, Any], parts: Sequence[KVCache]) -> Any:
        """x (B, T, C) -> (B, T, C)."""
        w, tokens = weights, x.shape[1]
        x, cos, sin = (np.ascontiguousarray(array, np.float32) for array in (x, *rotation))
        out = np.empty(x.shape, np.float32)
        rooms: list[tuple[Any, Any, int]] = [part.reserve(tokens, (w.kv_heads, w.head_dim)) for part in parts]
        rows = np.array(
            [(id(k), k.strides[0], id(v), v.strides[0], start + tokens, 0) for k, v, start in rooms], np.int64
        )
        with self._linear.lock:
            key = x.shape, cos.shape[-1], id(weights)
            chain = self._chains.of(
                key,
                self._linear,
                lambda: self._needs(x.shape, w),
                lambda places: self._made(x.shape, w, cos.shape[-1], places),
            )
            chain.run(id(x), id(out), id(rows), id(cos), id(sin))
            if self._linear.in_file:
                self._linear.verify(cast("tuple[Matrix, ...]", (w.q, w.k, w.v, w.out)))
        for part in parts:
            part.length += tokens
        return out

    @staticmethod
    def _needs(shape: Shape, w: Any) -> Needs:
        batch, tokens, columns = shape
        rows, inner = batch * tokens, w.heads * w.head_dim
        sizes = [columns, inner, inner, columns, sum(matrix.rows for matrix in (w.q, w.k, w.v))]
        return Needs(rows, max(columns, inner), [rows * size for size in sizes])

    def _made(self, shape: Shape, w: Any, turned: int, places: list[int]) -> Chain:
        batch, tokens, columns = shape
        rows, inner = batch * tokens, w.heads * w.head_dim
        normal, q, attended, last, products = places
        both, k, v = (products + 4 * rows * end for end in (0, w.q.rows, w.q.rows + w.k.rows))
        wide = self._linear.prepared((rows, columns), (w.q, w.k, w.v))
        narrow = self._linear.prepared((rows, inner), (w.out,))
        sizes = 0, batch, tokens, w.heads, w.kv_heads, w.head_dim, turned, bits(w.eps), w.q.rows // w.heads
        made = Work(heads, sizes, shared=rows > 1)
        attention = Work(
            a.attend, a.sizes(batch, tokens, w.heads, w.kv_heads, w.head_dim, w.head_dim, w.scale), shared=True
        )
        add = self._each.work("add", rows * columns)
        stages = [
            (rows_work(rms_rows, rows, columns, w.eps), (normal, 0, address(w.norm))),
            (wide.work, (normal, products)),
            (made, (q, both, k, v, address(w.q_norm), address(w.k_norm))),
            (attention, (attended, q)),
            (narrow.work, (attended, last)),
            (add, (0, 0, last)),
        ]
        if w.gated:
            gates = Work(open_gates, (rows * w.heads, w.head_dim), shared=rows > 1)
            stages.insert(4, (gates, (attended, both)))
        for work, arrays in stages:
            work.words[: len(arrays)] = arrays
        end = len(stages) - 1
        patches = (
            Patch(0, 1, 0),
            Patch(end, 0, 1),
            Patch(end, 1, 0),
            Patch(2, ROWS, 2),
            Patch(3, a.ROWS, 2),
            Patch(2, COS, 3),
            Patch(2, SIN, 4),
        )
        return Chain(self._team, [work for work, _ in stages], patches, (w, wide, narrow))
