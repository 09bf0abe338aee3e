"""Compressors: a few tokens become one key, pooled channel by channel; and the indexer, which chooses among such keys.

Source: transformers, models/deepseek_v4/modeling_deepseek_v4.py, `DeepseekV4HCACompressor`, `DeepseekV4CSACompressor`,
`DeepseekV4Indexer`, `DeepseekV4IndexerScorer`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf2q.backends.ops import Array, Matrix, Ops
from hf2q.backends.weights import Weights
from hf2q_arch_deepseek4.graph_cache import Pool
from hf2q_arch_deepseek4.graph_step import Rotation, Step
from hf2q_arch_deepseek4.hparams import DeepSeek4HParams

SCORES = 1 << 26
"""Products of queries and keys that the indexer holds at a time: 256 MB."""


class Compressor:
    """`ratio` tokens become one entry of `size` values.

    With a ratio of 4 entries overlap: each token has values and gates for the entry of its own four, and others for
    the entry after, so that eight tokens make an entry. The first entry has only four.
    """

    def __init__(
        self, h: DeepSeek4HParams, weights: Weights, ops: Ops, name: str, ratio: int, size: int, *, index: bool = False
    ) -> None:
        self.h, self.ops, self.ratio, self.size, self.index = h, ops, ratio, size, index
        self.overlap = ratio == 4
        self.kv = weights.matrix(f"{name}_kv.weight")
        self.gate = weights.matrix(f"{name}_gate.weight")
        self.norm = weights.array(f"{name}_norm.weight")
        self.ape = weights.array(f"{name}_ape.weight")  # (ratio, D), or (ratio, 2D)
        if self.overlap:
            self.ape = ops.concat((self.ape[:, :size], self.ape[:, size:]), 0)  # (2·ratio, D): before | own
            nothing = np.zeros((ratio, 4 * size), np.float32)
            nothing[:, 2 * size :] = -np.inf
            self.nothing = ops.asarray(nothing)  # before the first four: gates that let nothing through
        ops.eval(self.ape)

    @property
    def matrices(self) -> tuple[Matrix, Matrix]:
        """What turns hidden states into the arguments of a call."""
        return self.kv, self.gate

    def new_pool(self) -> Pool:
        """Empty memory."""
        return Pool(self.ops, self.ratio, self.overlap)

    def __call__(self, kv: Array, gate: Array, step: Step, pools: Sequence[Pool]) -> list[Array | None]:
        """kv and gate (B, T, D or 2D) -> for each row all its entries (1, N, D), None when there are none yet."""
        both = self.ops.concat((kv, gate), -1)
        both = both.reshape(*both.shape[:2], 1, both.shape[-1])
        for row, pool in enumerate(pools):
            rows = pool.pending.append(both[row])[0]
            start, stop = step.entries(row, self.ratio)
            if stop > start:
                begin = start * self.ratio - pool.pending.first
                rotation = step.entry_rotation(row, self.ratio, index=self.index)
                pool.entries.append(self._entries(rows, begin, stop - start, start == 0, rotation))
        return [pool.entries.kept() for pool in pools]

    def _entries(self, rows: Array, begin: int, count: int, first: bool, rotation: Rotation) -> Array:
        """`count` entries (count, 1, D) of the rows (S, kv | gate) from `begin` on."""
        ops, ratio, size = self.ops, self.ratio, self.size
        end = begin + count * ratio
        own = rows[begin:end].reshape(count, ratio, rows.shape[-1])
        if self.overlap:
            if first:
                before = self.nothing if count == 1 else ops.concat((self.nothing, rows[begin : end - ratio]), 0)
            else:
                before = rows[begin - ratio : end - ratio]
            before = before.reshape(count, ratio, rows.shape[-1])
            kv = ops.concat((before[..., :size], own[..., size : 2 * size]), 1)  # (N,2·ratio,D)
            gate = ops.concat((before[..., 2 * size : 3 * size], own[..., 3 * size :]), 1)
        else:
            kv, gate = own[..., :size], own[..., size:]  # (N,ratio,D)
        share = ops.softmax((gate + self.ape).transpose(0, 2, 1))  # (N,D,tokens)
        pooled = ops.sum(share * kv.transpose(0, 2, 1)).reshape(1, count, 1, size)
        pooled = ops.rms_norm(pooled, self.norm, self.h.rms_eps)
        return ops.rope(pooled, rotation.cos, rotation.sin, pairs=True).reshape(count, 1, size)


class Indexer:
    """Scores the entries of a block for each query, by keys of its own; the best `index_top_k` are attended to."""

    def __init__(self, h: DeepSeek4HParams, weights: Weights, ops: Ops, blk: str, ratio: int) -> None:
        self.h, self.ops = h, ops
        self.proj = weights.matrix(f"{blk}.indexer.proj.weight")
        self.attn_q_b = weights.matrix(f"{blk}.indexer.attn_q_b.weight")
        name = f"{blk}.indexer_compressor"
        self.compressor = Compressor(h, weights, ops, name, ratio, h.d_index, index=True)
        self.scale = (h.n_index_head * h.d_index) ** -0.5
        self.every = ops.asarray(np.zeros((h.d_head, 1), np.int32))

    def queries(self, x: Array, reduced: Array, rotation: Rotation) -> tuple[Array, Array]:
        """Hidden states (B, T, C) and reduced queries (B, T, q_rank) -> queries (B, T, H, D) and weights (B, T, H)."""
        ops, h = self.ops, self.h
        q = ops.linear(reduced, self.attn_q_b).reshape(*x.shape[:2], h.n_index_head, h.d_index)
        return ops.rope(q, rotation.cos, rotation.sin, pairs=True), ops.linear(x, self.proj) * self.scale

    def scores(self, q: Array, weights: Array, keys: Array) -> Array:
        """Of one row: q (T, H, D), weights (T, H), keys (1, N, D) -> Σ_h weight · relu(q · key), (T, N)."""
        ops, turned = self.ops, keys[0].transpose(1, 0)
        tokens, heads, size = q.shape
        count = turned.shape[1]
        step = max(1, SCORES // (heads * count))
        found = []
        for start in range(0, tokens, step):
            part = q[start : start + step].reshape(-1, size)  # (T·H,D)
            products = ops.clamp(ops.matmul(part, turned), 0, None).reshape(-1, heads, count)
            share = weights[start : start + step].reshape(-1, 1, heads)
            found.append(ops.matmul(share, products).reshape(-1, count))
        return found[0] if len(found) == 1 else ops.concat(found, 0)

    def best(self, scores: Array, entries: Array) -> Array:
        """Of one query: scores (1, N), entries (1, N, D) -> the best (1, index_top_k, D)."""
        ops, k = self.ops, self.h.index_top_k
        _, places = ops.top_k(scores, k)  # (1,k)
        chosen = ops.take_along(entries[0].transpose(1, 0), places + self.every)  # (D,k)
        return chosen.transpose(1, 0).reshape(1, k, self.h.d_head)
