"""Attention of the family: one key for all heads that is the value as well, a window, sinks, compressed entries.

Values carry the rotation of their keys; it is undone in the result, at the position of the query.

Source: transformers, models/deepseek_v4/modeling_deepseek_v4.py, `DeepseekV4Attention`, `DeepseekV4GroupedLinear`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hf2q.backends.ops import Array, Ops
from hf2q.backends.weights import Weights
from hf2q_arch_deepseek4.graph_cache import BlockCache
from hf2q_arch_deepseek4.graph_compress import Compressor, Indexer
from hf2q_arch_deepseek4.graph_step import Step
from hf2q_arch_deepseek4.hparams import DeepSeek4HParams


class Attention:
    """With a sliding window alone, or with compressed entries besides: all of them, or those an indexer chooses."""

    def __init__(self, h: DeepSeek4HParams, weights: Weights, ops: Ops, i: int) -> None:
        blk = f"blk.{i}"
        self.h, self.ops = h, ops
        self.ratio = h.compress_ratios[i]
        self.attn_q_a = weights.matrix(f"{blk}.attn_q_a.weight")
        self.attn_q_a_norm = weights.array(f"{blk}.attn_q_a_norm.weight")
        self.attn_q_b = weights.matrix(f"{blk}.attn_q_b.weight")
        self.attn_kv = weights.matrix(f"{blk}.attn_kv.weight")
        self.attn_kv_a_norm = weights.array(f"{blk}.attn_kv_a_norm.weight")
        self.attn_sinks = weights.array(f"{blk}.attn_sinks.weight")
        self.attn_output_a = weights.matrix(f"{blk}.attn_output_a.weight", groups=h.o_groups)
        self.attn_output_b = weights.matrix(f"{blk}.attn_output_b.weight")
        self.compressors: list[Compressor] = []
        self.indexer: Indexer | None = None
        if self.ratio:
            self.compressors.append(Compressor(h, weights, ops, f"{blk}.attn_compressor", self.ratio, h.d_head))
        if self.ratio == 4:
            self.indexer = Indexer(h, weights, ops, blk, self.ratio)
            self.compressors.append(self.indexer.compressor)

    def new_cache(self) -> BlockCache:
        """Empty memory of a sequence."""
        return BlockCache(self.ops, self.h.window, [compressor.new_pool() for compressor in self.compressors])

    def __call__(self, x: Array, step: Step, parts: Sequence[BlockCache]) -> Array:
        """x (B, T, C) -> (B, T, C)."""
        h, ops = self.h, self.ops
        batch, tokens, _ = x.shape
        rotation = step.compressed if self.ratio else step.plain
        matrices = [matrix for compressor in self.compressors for matrix in compressor.matrices]
        reduced, kv, *rest = ops.linears(x, (self.attn_q_a, self.attn_kv, *matrices))
        reduced = ops.rms_norm(reduced, self.attn_q_a_norm, h.rms_eps)  # (B,T,q_rank)
        q = ops.linear(reduced, self.attn_q_b).reshape(batch, tokens, h.n_head, h.d_head)
        q = ops.rope(ops.rms_norm(q, None, h.rms_eps), rotation.cos, rotation.sin, pairs=True)
        kv = ops.rms_norm(kv, self.attn_kv_a_norm, h.rms_eps).reshape(batch, tokens, 1, h.d_head)
        kv = ops.rope(kv, rotation.cos, rotation.sin, pairs=True)
        keys = [self._window(part.window.append(kv[row]), tokens) for row, part in enumerate(parts)]
        masks: list[Array] | None = None
        if self.ratio:
            keys, masks = self._with_entries(keys, x, reduced, rest, step, parts)
        out = ops.attention(
            q,
            keys,
            keys,
            h.d_head**-0.5,
            causal=not self.ratio,
            window=0 if self.ratio else h.window,
            sinks=self.attn_sinks,
            masks=masks,
        )
        out = ops.rope(out, rotation.cos, rotation.back, pairs=True)
        groups = out.reshape(batch, tokens, h.o_groups, h.n_head * h.d_head // h.o_groups)
        out = ops.grouped_linear(groups, self.attn_output_a).reshape(batch, tokens, h.o_groups * h.o_rank)
        return ops.linear(out, self.attn_output_b)

    def _window(self, kept: Array, tokens: int) -> Array:
        """Of what a cache has (1, S, D) that which the `tokens` queries at its end can see."""
        seen = self.h.window - 1 + tokens
        return kept if kept.shape[1] <= seen else kept[:, kept.shape[1] - seen :]

    def _with_entries(
        self,
        windows: list[Array],
        x: Array,
        reduced: Array,
        rest: Sequence[Array],
        step: Step,
        parts: Sequence[BlockCache],
    ) -> tuple[list[Array], list[Array] | None]:
        """Keys of each row with its compressed entries after the window, and masks; a single query sees all of them.

        The indexer is asked only where there are more entries than it may choose.
        """
        ops, top_k = self.ops, self.h.index_top_k
        found = [
            compressor(rest[2 * place], rest[2 * place + 1], step, [part.pools[place] for part in parts])
            for place, compressor in enumerate(self.compressors)
        ]
        choose = [self.indexer is not None and step.entries(row, self.ratio)[1] > top_k for row in range(len(parts))]
        q, weights = self.indexer.queries(x, reduced, step.index) if self.indexer and any(choose) else (None, None)
        keys, masks = [], []
        for row, window in enumerate(windows):
            entries, scores = found[0][row], None
            if choose[row] and self.indexer and q is not None and weights is not None:
                index = found[1][row]
                assert index is not None  # as many as there are entries
                scores = self.indexer.scores(q[row], weights[row], index)
            if step.tokens > 1:
                masks.append(self._mask(row, window.shape[1], scores, entries is not None, step))
            elif scores is not None and self.indexer and entries is not None:
                entries = self.indexer.best(scores, entries)
            keys.append(window if entries is None else ops.concat((window, entries), 1))
        return keys, masks or None

    def _mask(self, row: int, kept: int, scores: Array | None, entries: bool, step: Step) -> Array:
        if scores is None:
            return step.mask(row, kept, self.ratio) if entries else step.window_mask(row, kept)
        seen = step.entry_mask(row, self.ratio)
        chosen = seen + self.ops.top_k_mask(scores + seen, self.h.index_top_k)
        return self.ops.concat((step.window_mask(row, kept), chosen), -1)
