"""The forward pass. Attributes are named as the GGUF tensors. Source: transformers, models/llama/modeling_llama.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hf2q.backends import rope
from hf2q.backends.cache import Cache, KVCache, advance, append, layers, positions
from hf2q.backends.ops import Array, Ops
from hf2q.backends.weights import Weights
from hf2q_example_arch.hparams import ExampleHParams


class Block:
    """Attention and SwiGLU, each behind a norm and added to the residual stream."""

    def __init__(self, h: ExampleHParams, weights: Weights, ops: Ops, i: int) -> None:
        self.h, self.ops = h, ops
        self.attn_norm = weights.array(f"blk.{i}.attn_norm.weight")
        self.attn_q = weights.matrix(f"blk.{i}.attn_q.weight")
        self.attn_k = weights.matrix(f"blk.{i}.attn_k.weight")
        self.attn_v = weights.matrix(f"blk.{i}.attn_v.weight")
        self.attn_output = weights.matrix(f"blk.{i}.attn_output.weight")
        self.ffn_norm = weights.array(f"blk.{i}.ffn_norm.weight")
        self.ffn_gate = weights.matrix(f"blk.{i}.ffn_gate.weight")
        self.ffn_up = weights.matrix(f"blk.{i}.ffn_up.weight")
        self.ffn_down = weights.matrix(f"blk.{i}.ffn_down.weight")

    def __call__(self, x: Array, cos: Array, sin: Array, parts: Sequence[KVCache]) -> Array:
        """x (B, T, C) -> (B, T, C)."""
        h, ops, (batch, tokens, _) = self.h, self.ops, x.shape
        y = ops.rms_norm(x, self.attn_norm, h.rms_eps)
        q, k, v = ops.linears(y, (self.attn_q, self.attn_k, self.attn_v))
        q = ops.rope(q.reshape(batch, tokens, h.n_head, h.n_rot), cos, sin)  # (B,T,H,D)
        k = ops.rope(k.reshape(batch, tokens, h.n_head_kv, h.n_rot), cos, sin)  # (B,T,G,D)
        v = v.reshape(batch, tokens, h.n_head_kv, h.n_rot)  # (B,T,G,D)
        out = ops.attention(q, *append(parts, k, v), h.n_rot**-0.5)  # (B,T,H,D)
        x = x + ops.linear(out.reshape(batch, tokens, h.n_head * h.n_rot), self.attn_output)
        y = ops.rms_norm(x, self.ffn_norm, h.rms_eps)
        return x + ops.linear(ops.swiglu(*ops.linears(y, (self.ffn_gate, self.ffn_up))), self.ffn_down)


class ExampleGraph:
    """Arch ``example``; follows `hf2q.backends.graph.ForwardGraph`."""

    def __init__(self, hparams: ExampleHParams, weights: Weights, ops: Ops) -> None:
        self.h, self.ops = hparams, ops
        self.inverse_frequencies = rope.frequencies(hparams.n_rot, hparams.rope_base)
        self.token_embd = weights.matrix("token_embd.weight")
        self.blk = [Block(hparams, weights, ops, i) for i in range(hparams.n_layer)]
        self.output_norm = weights.array("output_norm.weight")
        self.output = weights.matrix("output.weight") if "output.weight" in weights else self.token_embd

    @property
    def n_vocab(self) -> int:
        """Number of logits."""
        return self.output.shape[0]

    def new_cache(self) -> Cache:
        """An empty cache."""
        return Cache([KVCache(self.ops) for _ in self.blk])

    def hidden(self, ids: NDArray[np.int32], caches: Sequence[Cache]) -> Array:
        """ids (B, T) after what `caches` hold -> final, normalised hidden states (B, T, C)."""
        tokens = ids.shape[1]
        places = positions(caches, tokens)
        cos, sin = (self.ops.asarray(part) for part in rope.table(places, self.inverse_frequencies))  # (B,T,R)
        x = self.ops.embedding(self.ops.asarray(ids), self.token_embd)  # (B,T,C)
        for block, parts in zip(self.blk, layers(caches), strict=True):
            x = block(x, cos, sin, parts)
        advance(caches, tokens)
        return self.ops.rms_norm(x, self.output_norm, self.h.rms_eps)

    def head(self, hidden: Array) -> Array:
        """(..., C) -> logits (..., V)."""
        return self.ops.linear(hidden, self.output)
