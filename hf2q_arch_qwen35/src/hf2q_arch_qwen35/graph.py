"""The forward pass of Qwen 3.5, dense and MoE: three Gated DeltaNet layers, one gated full attention, and again.

What is special about the family: every fourth layer attends, with an output gate interleaved head by head into the
query projection, norms on queries and keys, and RoPE on a quarter of each head; the other layers keep a matrix for
each value head instead of keys and values. An MoE layer adds a gated shared expert to the routed ones.

Attributes are named as the GGUF tensors; what conversion did to them (norm weights + 1, -exp(A_log), value heads in
tiled order) is done. MTP blocks are not part of the trunk: `mtp` has them.

Sources: transformers, models/qwen3_5/modeling_qwen3_5.py and models/qwen3_5_moe/modeling_qwen3_5_moe.py; llama.cpp,
src/models/qwen35.cpp and qwen35moe.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf2q.backends import media as images
from hf2q.backends import rope
from hf2q.backends.cache import Cache, KVCache, StateCache, layers
from hf2q.backends.media import Media
from hf2q.backends.ops import Array, AttentionWeights, DeltaWeights, Ops
from hf2q.backends.weights import Weights
from hf2q_arch_qwen35.hparams import Qwen35HParams

L2_EPS = 1e-6
"""Of the norm of queries and keys in linear attention; no hyper-parameter. Source: modeling_qwen3_5.py, l2norm."""

Rotation = tuple[Array, Array]


class FullAttention:
    """Gated grouped-query attention with a KV cache."""

    def __init__(self, h: Qwen35HParams, weights: Weights, ops: Ops, blk: str) -> None:
        self.ops = ops
        self.weights = AttentionWeights.of(
            weights,
            blk,
            heads=h.n_head,
            kv_heads=h.n_head_kv,
            head_dim=h.head_dim,
            gated=True,
            eps=h.rms_eps,
        )

    def new_cache(self) -> KVCache:
        """Keys and values."""
        return KVCache(self.ops)

    def __call__(self, x: Array, rotation: Rotation, parts: Sequence[KVCache]) -> Array:
        """x (B, T, C), and to it what the layer makes of its norm."""
        return self.ops.attention_layer(x, self.weights, rotation, parts)


class GatedDeltaNet:
    """Linear attention: a short causal convolution, then the gated delta rule on one matrix for each value head."""

    def __init__(self, h: Qwen35HParams, weights: Weights, ops: Ops, blk: str) -> None:
        self.h, self.ops = h, ops
        self.weights = DeltaWeights(
            norm=weights.array(f"{blk}.attn_norm.weight"),
            mixed=weights.matrix(f"{blk}.attn_qkv.weight"),
            gate=weights.matrix(f"{blk}.attn_gate.weight"),
            beta=weights.matrix(f"{blk}.ssm_beta.weight"),
            alpha=weights.matrix(f"{blk}.ssm_alpha.weight"),
            conv=weights.array(f"{blk}.ssm_conv1d.weight"),
            a=weights.array(f"{blk}.ssm_a"),  # -exp(A_log)
            dt=weights.array(f"{blk}.ssm_dt.bias"),
            head_norm=weights.array(f"{blk}.ssm_norm.weight"),
            out=weights.matrix(f"{blk}.ssm_out.weight"),
            eps=h.rms_eps,
            l2_eps=L2_EPS,
        )
        self.keys, self.values = h.d_k * h.n_k_heads, h.d_v * h.n_v_heads

    def new_cache(self) -> StateCache:
        """The convolution's last inputs (K - 1, channels) and the matrices (H, Dk, Dv)."""
        return StateCache(self.ops)

    def __call__(self, x: Array, rotation: Rotation, parts: Sequence[StateCache]) -> Array:
        """x (B, T, C), and to it what the layer makes of its norm. Positions are in the states, not in `rotation`."""
        before = [part.states or self._fresh() for part in parts]
        out, after = self.ops.delta_layer(x, self.weights, before)
        for part, states in zip(parts, after, strict=True):
            part.states = states
        return out

    def _fresh(self) -> tuple[Array, Array]:
        h = self.h
        conv = self.ops.zeros((h.conv_kernel - 1, 2 * self.keys + self.values))
        return conv, self.ops.zeros((h.n_v_heads, h.d_k, h.d_v))


class DenseFFN:
    """SwiGLU."""

    def __init__(self, h: Qwen35HParams, weights: Weights, ops: Ops, blk: str) -> None:
        self.h, self.ops = h, ops
        self.ffn_gate = weights.matrix(f"{blk}.ffn_gate.weight")
        self.ffn_up = weights.matrix(f"{blk}.ffn_up.weight")
        self.ffn_down = weights.matrix(f"{blk}.ffn_down.weight")

    def __call__(self, x: Array, norm: Array) -> Array:
        """x (B, T, C), and to it what the layer makes of its norm."""
        return self.ops.gated_ffn(x, norm, self.h.rms_eps, self.ffn_gate, self.ffn_up, self.ffn_down)


class MoEFFN:
    """The best k of E experts, weighted, and a shared expert behind a gate of its own."""

    def __init__(self, h: Qwen35HParams, weights: Weights, ops: Ops, blk: str) -> None:
        self.h, self.ops = h, ops
        self.ffn_gate_inp = weights.matrix(f"{blk}.ffn_gate_inp.weight")
        self.ffn_gate_exps = weights.matrix(f"{blk}.ffn_gate_exps.weight")
        self.ffn_up_exps = weights.matrix(f"{blk}.ffn_up_exps.weight")
        self.ffn_down_exps = weights.matrix(f"{blk}.ffn_down_exps.weight")
        self.ffn_gate_inp_shexp = weights.array(f"{blk}.ffn_gate_inp_shexp.weight")  # (C,) or (1,C)
        self.ffn_gate_shexp = weights.matrix(f"{blk}.ffn_gate_shexp.weight")
        self.ffn_up_shexp = weights.matrix(f"{blk}.ffn_up_shexp.weight")
        self.ffn_down_shexp = weights.matrix(f"{blk}.ffn_down_shexp.weight")

    def __call__(self, x: Array, norm: Array) -> Array:
        """x (B, T, C), and to it what the layer makes of its norm."""
        ops, before = self.ops, x
        x = ops.rms_norm(x, norm, self.h.rms_eps)
        # probabilities over all experts, then the chosen ones scaled to a sum of 1: k of E hold at least k/E of it
        chosen, experts = ops.top_k(ops.softmax(ops.linear(x, self.ffn_gate_inp)), self.h.n_expert_used)  # (B,T,K)
        share = chosen / ops.sum(chosen)
        gate_up = (self.ffn_gate_exps, self.ffn_up_exps)
        routed = ops.moe(x, experts, share, gate_up, self.ffn_down_exps, ops.swiglu)
        hidden = ops.swiglu(*ops.linears(x, (self.ffn_gate_shexp, self.ffn_up_shexp)))
        gate = ops.sigmoid(ops.sum(x * self.ffn_gate_inp_shexp))  # (B,T,1)
        return before + routed + gate * ops.linear(hidden, self.ffn_down_shexp)


class Block:
    """One layer: a mixer and an FFN, each behind a norm and added to the residual stream."""

    def __init__(self, h: Qwen35HParams, weights: Weights, ops: Ops, i: int) -> None:
        blk = f"blk.{i}"
        self.mixer = (GatedDeltaNet if h.recurrent[i] else FullAttention)(h, weights, ops, blk)
        self.post_attention_norm = weights.array(f"{blk}.post_attention_norm.weight")
        self.ffn = (MoEFFN if h.n_expert else DenseFFN)(h, weights, ops, blk)

    def __call__(self, x: Array, rotation: Rotation, parts: Sequence[Any]) -> Array:
        """x (B, T, C) -> (B, T, C)."""
        return self.ffn(self.mixer(x, rotation, parts), self.post_attention_norm)


class Qwen35Graph:
    """Archs ``qwen35`` and ``qwen35moe``; follows `hf2q.backends.graph.SeeingGraph`."""

    n_deepstack = 0
    """The family's towers hand over nothing but the embeddings of an image."""

    whole_images = False
    """Tokens of an image see earlier ones only, so that it may go in in parts."""

    def __init__(self, hparams: Qwen35HParams, weights: Weights, ops: Ops) -> None:
        self.h, self.ops = hparams, ops
        self.inverse_frequencies = rope.frequencies(hparams.rope_dim, hparams.rope_base)
        self.rope_axes = rope.interleaved_axes(hparams.rope_sections, hparams.rope_dim // 2)
        self.token_embd = weights.matrix("token_embd.weight")
        self.blk = [Block(hparams, weights, ops, i) for i in range(hparams.n_trunk)]
        self.output_norm = weights.array("output_norm.weight")
        tied = "output.weight" not in weights
        self.output = self.token_embd if tied else weights.matrix("output.weight")

    @property
    def n_vocab(self) -> int:
        """Number of logits."""
        return self.output.shape[0]

    def new_cache(self) -> Cache:
        """An empty cache."""
        return Cache([block.mixer.new_cache() for block in self.blk])

    def hidden(self, ids: NDArray[np.int32], caches: Sequence[Cache], media: Media | None = None) -> Array:
        """ids (B, T) after what `caches` hold -> final, normalised hidden states (B, T, C)."""
        ops, tokens = self.ops, ids.shape[1]
        seen = images.check_media(caches, tokens, media)
        x = images.with_images(ops, ops.embedding(ops.asarray(ids), self.token_embd), caches, seen)  # (B,T,C)
        rotation = self.rotation(images.mrope_positions(caches, tokens, seen))
        for block, parts in zip(self.blk, layers(caches), strict=True):
            x = block(x, rotation, parts)
        images.advance_mrope(caches, tokens, seen)
        return ops.rms_norm(x, self.output_norm, self.h.rms_eps)

    def head(self, hidden: Array) -> Array:
        """(..., C) -> logits (..., V)."""
        return self.ops.linear(hidden, self.output)

    def rotation(self, places: NDArray[np.int64]) -> Rotation:
        """Cosines and sines for the places (B, T, 3) of tokens."""
        cos, sin = rope.table(places[..., self.rope_axes], self.inverse_frequencies)  # (B,T,R)
        return self.ops.asarray(cos), self.ops.asarray(sin)
