"""The forward pass of the text model of Qwen 3-VL, dense and MoE: attention with norms on queries and keys, M-RoPE.

Attributes are named as the GGUF tensors. An image goes in as embeddings in the place of tokens; features that the
tower took from its own blocks (DeepStack) are added to the outputs of the first layers, at its tokens.

Sources: transformers, models/qwen3_vl/modeling_qwen3_vl.py and models/qwen3_vl_moe/modeling_qwen3_vl_moe.py;
llama.cpp, src/models/qwen3vl.cpp and qwen3vlmoe.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hf2q.backends import media as images
from hf2q.backends import rope
from hf2q.backends.cache import Cache, KVCache, layers
from hf2q.backends.media import Media
from hf2q.backends.ops import Array, AttentionWeights, Ops
from hf2q.backends.weights import Weights
from hf2q_arch_qwen3vl.hparams import Qwen3VLHParams

Rotation = tuple[Array, Array]


class DenseFFN:
    """SwiGLU."""

    def __init__(self, h: Qwen3VLHParams, weights: Weights, ops: Ops, blk: str) -> None:
        self.h, self.ops = h, ops
        self.ffn_gate = weights.matrix(f"{blk}.ffn_gate.weight")
        self.ffn_up = weights.matrix(f"{blk}.ffn_up.weight")
        self.ffn_down = weights.matrix(f"{blk}.ffn_down.weight")

    def __call__(self, x: Array, norm: Array) -> Array:
        """x (B, T, C), and to it what the layer makes of its norm."""
        return self.ops.gated_ffn(x, norm, self.h.rms_eps, self.ffn_gate, self.ffn_up, self.ffn_down)


class MoEFFN:
    """The best k of E experts, weighted."""

    def __init__(self, h: Qwen3VLHParams, weights: Weights, ops: Ops, blk: str) -> None:
        self.h, self.ops = h, ops
        self.ffn_gate_inp = weights.matrix(f"{blk}.ffn_gate_inp.weight")
        self.ffn_gate_exps = weights.matrix(f"{blk}.ffn_gate_exps.weight")
        self.ffn_up_exps = weights.matrix(f"{blk}.ffn_up_exps.weight")
        self.ffn_down_exps = weights.matrix(f"{blk}.ffn_down_exps.weight")

    def __call__(self, x: Array, norm: Array) -> Array:
        """x (B, T, C), and to it what the layer makes of its norm."""
        ops, before = self.ops, x
        x = ops.rms_norm(x, norm, self.h.rms_eps)
        # probabilities over all experts, then the chosen ones scaled to a sum of 1
        chosen, experts = ops.top_k(ops.softmax(ops.linear(x, self.ffn_gate_inp)), self.h.n_expert_used)  # (B,T,K)
        gate_up = (self.ffn_gate_exps, self.ffn_up_exps)
        return before + ops.moe(x, experts, chosen / ops.sum(chosen), gate_up, self.ffn_down_exps, ops.swiglu)


class Block:
    """One layer: attention and an FFN, each behind a norm and added to the residual stream."""

    def __init__(self, h: Qwen3VLHParams, weights: Weights, ops: Ops, i: int) -> None:
        blk = f"blk.{i}"
        self.ops = ops
        self.attention = AttentionWeights.of(
            weights,
            blk,
            heads=h.n_head,
            kv_heads=h.n_head_kv,
            head_dim=h.head_dim,
            gated=False,
            eps=h.rms_eps,
        )
        self.ffn_norm = weights.array(f"{blk}.ffn_norm.weight")
        self.ffn = (MoEFFN if h.n_expert else DenseFFN)(h, weights, ops, blk)

    def __call__(self, x: Array, rotation: Rotation, parts: Sequence[KVCache]) -> Array:
        """x (B, T, C) -> (B, T, C)."""
        return self.ffn(self.ops.attention_layer(x, self.attention, rotation, parts), self.ffn_norm)


class Qwen3VLGraph:
    """Archs ``qwen3vl`` and ``qwen3vlmoe``; follows `hf2q.backends.graph.SeeingGraph`."""

    def __init__(self, hparams: Qwen3VLHParams, weights: Weights, ops: Ops) -> None:
        self.h, self.ops = hparams, ops
        self.inverse_frequencies = rope.frequencies(hparams.head_dim, hparams.rope_base)
        self.rope_axes = rope.interleaved_axes(hparams.rope_sections, hparams.head_dim // 2, spill=True)
        self.token_embd = weights.matrix("token_embd.weight")
        self.blk = [Block(hparams, weights, ops, i) for i in range(hparams.n_layer)]
        self.output_norm = weights.array("output_norm.weight")
        tied = "output.weight" not in weights
        self.output = self.token_embd if tied else weights.matrix("output.weight")

    @property
    def n_vocab(self) -> int:
        """Number of logits."""
        return self.output.shape[0]

    @property
    def n_deepstack(self) -> int:
        """Number of first layers to whose outputs features of an image are added."""
        return self.h.n_deepstack

    @property
    def whole_images(self) -> bool:
        """Tokens of an image see earlier ones only, so that it may go in in parts."""
        return False

    def new_cache(self) -> Cache:
        """An empty cache."""
        return Cache([KVCache(self.ops) for _ in self.blk])

    def hidden(self, ids: NDArray[np.int32], caches: Sequence[Cache], media: Media | None = None) -> Array:
        """ids (B, T) after what `caches` hold -> final, normalised hidden states (B, T, C)."""
        ops, tokens = self.ops, ids.shape[1]
        seen = images.check_media(caches, tokens, media)
        x = images.with_images(ops, ops.embedding(ops.asarray(ids), self.token_embd), caches, seen)  # (B,T,C)
        features = images.deepstack(ops, x, caches, seen)
        rotation = self._rotation(images.mrope_positions(caches, tokens, seen))
        for i, (block, parts) in enumerate(zip(self.blk, layers(caches), strict=True)):
            x = block(x, rotation, parts)
            if i < len(features):
                x = x + features[i]
        images.advance_mrope(caches, tokens, seen)
        return ops.rms_norm(x, self.output_norm, self.h.rms_eps)

    def head(self, hidden: Array) -> Array:
        """(..., C) -> logits (..., V)."""
        return self.ops.linear(hidden, self.output)

    def _rotation(self, places: NDArray[np.int64]) -> Rotation:
        cos, sin = rope.table(places[..., self.rope_axes], self.inverse_frequencies)  # (B,T,R)
        return self.ops.asarray(cos), self.ops.asarray(sin)
