"""The forward pass of DeepSeek-V4.

What is special about the family: several residual streams that each half of a block mixes anew (`graph_streams`); one
key for all heads, kept for a short window, and beyond it compressed entries, some of which an indexer chooses
(`graph_attention`, `graph_compress`); experts that the first blocks choose by token id (`graph_ffn`). What a sequence
remembers is in `graph_cache`, what the blocks of one call share in `graph_step`.

Attributes are named as the GGUF tensors. MTP blocks are no part of a model's file; the routing bias of image tokens
(``exp_probs_b_vl``) is not loaded, for only text comes in.

Sources: transformers, models/deepseek_v4/modeling_deepseek_v4.py; llama.cpp, src/models/deepseek4.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hf2q.backends.cache import Cache, advance, layers
from hf2q.backends.ops import Array, Ops
from hf2q.backends.weights import Weights
from hf2q_arch_deepseek4.graph_attention import Attention
from hf2q_arch_deepseek4.graph_cache import BlockCache
from hf2q_arch_deepseek4.graph_ffn import MoE
from hf2q_arch_deepseek4.graph_step import Frequencies, Step
from hf2q_arch_deepseek4.graph_streams import HyperConnection, HyperHead
from hf2q_arch_deepseek4.hparams import DeepSeek4HParams


class Block:
    """One layer: attention and an FFN, each behind a norm and between hyper-connections."""

    def __init__(self, h: DeepSeek4HParams, weights: Weights, ops: Ops, i: int) -> None:
        blk = f"blk.{i}"
        self.h, self.ops = h, ops
        self.hc_attn = HyperConnection(h, weights, ops, f"{blk}.hc_attn")
        self.attn_norm = weights.array(f"{blk}.attn_norm.weight")
        self.attention = Attention(h, weights, ops, i)
        self.hc_ffn = HyperConnection(h, weights, ops, f"{blk}.hc_ffn")
        self.ffn_norm = weights.array(f"{blk}.ffn_norm.weight")
        self.ffn = MoE(h, weights, ops, i)

    def __call__(self, streams: Array, step: Step, parts: Sequence[BlockCache]) -> Array:
        """(B, T, N, C) -> (B, T, N, C)."""
        ops, eps = self.ops, self.h.rms_eps
        streams = self.hc_attn(streams, lambda x: self.attention(ops.rms_norm(x, self.attn_norm, eps), step, parts))
        return self.hc_ffn(streams, lambda x: self.ffn(ops.rms_norm(x, self.ffn_norm, eps), step))


class DeepSeek4Graph:
    """Arch ``deepseek4``; follows `hf2q.backends.graph.ForwardGraph`."""

    def __init__(self, hparams: DeepSeek4HParams, weights: Weights, ops: Ops) -> None:
        self.h, self.ops = hparams, ops
        self.frequencies = Frequencies(hparams)
        self.token_embd = weights.matrix("token_embd.weight")
        self.blk = [Block(hparams, weights, ops, i) for i in range(hparams.n_layer)]
        self.output_hc = HyperHead(hparams, weights, ops)
        self.output_norm = weights.array("output_norm.weight")
        self.output = weights.matrix("output.weight")

    @property
    def n_vocab(self) -> int:
        """Number of logits."""
        return self.output.shape[0]

    def new_cache(self) -> Cache:
        """An empty cache."""
        return Cache([block.attention.new_cache() for block in self.blk])

    def hidden(self, ids: NDArray[np.int32], caches: Sequence[Cache]) -> Array:
        """ids (B, T) after what `caches` hold -> final, normalised hidden states (B, T, C)."""
        ops, h = self.ops, self.h
        step = Step(h, ops, self.frequencies, ids, caches)
        x = ops.embedding(ops.asarray(ids), self.token_embd)
        x = x.reshape(*ids.shape, 1, h.n_embd)
        streams = ops.concat([x] * h.n_streams, 2)  # (B,T,N,C)
        for block, parts in zip(self.blk, layers(caches), strict=True):
            streams = block(streams, step, parts)
        advance(caches, step.tokens)
        return ops.rms_norm(self.output_hc(streams), self.output_norm, h.rms_eps)

    def head(self, hidden: Array) -> Array:
        """(..., C) -> logits (..., V)."""
        return self.ops.linear(hidden, self.output)
