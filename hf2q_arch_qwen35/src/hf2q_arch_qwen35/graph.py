"""The forward pass of Qwen 3.5, dense and MoE: three Gated DeltaNet layers, one gated full attention, and again.

What is special about the family: every fourth layer attends, with an output gate interleaved head by head into the
query projection, norms on queries and keys, and RoPE on a quarter of each head; the other layers keep a matrix for
each value head instead of keys and values. An MoE layer adds a gated shared expert to the routed ones.

Attributes are named as the GGUF tensors; what conversion did to them (norm weights + 1, -exp(A_log), value heads in
tiled order) is done. MTP blocks are not part of the trunk and are not loaded.

Sources: transformers, models/qwen3_5/modeling_qwen3_5.py and models/qwen3_5_moe/modeling_qwen3_5_moe.py; llama.cpp,
src/models/qwen35.cpp and qwen35moe.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf2q.backends import rope
from hf2q.backends.cache import Cache, KVCache, StateCache
from hf2q.backends.ops import Array, Ops
from hf2q.backends.weights import Weights
from hf2q_arch_qwen35.hparams import Qwen35HParams

L2_EPS = 1e-6
"""Of the norm of queries and keys in linear attention; no hyper-parameter. Source: modeling_qwen3_5.py, l2norm."""

Rotation = tuple[Array, Array]


class FullAttention:
    """Gated grouped-query attention with a KV cache."""

    def __init__(self, h: Qwen35HParams, weights: Weights, ops: Ops, blk: str) -> None:
        self.h, self.ops = h, ops
        self.attn_q = weights.matrix(f"{blk}.attn_q.weight")
        self.attn_k = weights.matrix(f"{blk}.attn_k.weight")
        self.attn_v = weights.matrix(f"{blk}.attn_v.weight")
        self.attn_q_norm = weights.array(f"{blk}.attn_q_norm.weight")
        self.attn_k_norm = weights.array(f"{blk}.attn_k_norm.weight")
        self.attn_output = weights.matrix(f"{blk}.attn_output.weight")

    def new_cache(self) -> KVCache:
        """Keys and values."""
        return KVCache(self.ops)

    def __call__(self, x: Array, rotation: Rotation, cache: KVCache) -> Array:
        """x (B, T, C) -> (B, T, C)."""
        h, ops = self.h, self.ops
        batch, tokens, _ = x.shape
        both = ops.linear(x, self.attn_q).reshape(batch, tokens, h.n_head, 2 * h.head_dim)  # (B,T,H,2D): query | gate
        q, gate = both[..., : h.head_dim], both[..., h.head_dim :]
        k = ops.linear(x, self.attn_k).reshape(batch, tokens, h.n_head_kv, h.head_dim)  # (B,T,G,D)
        v = ops.linear(x, self.attn_v).reshape(batch, tokens, h.n_head_kv, h.head_dim)  # (B,T,G,D)
        q = ops.rope(ops.rms_norm(q, self.attn_q_norm, h.rms_eps), *rotation)
        k = ops.rope(ops.rms_norm(k, self.attn_k_norm, h.rms_eps), *rotation)
        keys, values = cache.append(k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3))  # (B,G,S,D)
        out = ops.attention(q.transpose(0, 2, 1, 3), keys, values, h.head_dim**-0.5)  # (B,H,T,D)
        out = out.transpose(0, 2, 1, 3) * ops.sigmoid(gate)  # (B,T,H,D)
        return ops.linear(out.reshape(batch, tokens, h.n_head * h.head_dim), self.attn_output)


class GatedDeltaNet:
    """Linear attention: a short causal convolution, then the gated delta rule on one matrix for each value head."""

    def __init__(self, h: Qwen35HParams, weights: Weights, ops: Ops, blk: str) -> None:
        self.h, self.ops = h, ops
        self.attn_qkv = weights.matrix(f"{blk}.attn_qkv.weight")
        self.attn_gate = weights.matrix(f"{blk}.attn_gate.weight")
        self.ssm_alpha = weights.matrix(f"{blk}.ssm_alpha.weight")
        self.ssm_beta = weights.matrix(f"{blk}.ssm_beta.weight")
        self.ssm_a = weights.array(f"{blk}.ssm_a")  # -exp(A_log)
        self.ssm_dt = weights.array(f"{blk}.ssm_dt.bias")
        self.ssm_conv1d = weights.array(f"{blk}.ssm_conv1d.weight")
        self.ssm_norm = weights.array(f"{blk}.ssm_norm.weight")
        self.ssm_out = weights.matrix(f"{blk}.ssm_out.weight")
        self.keys, self.values = h.d_k * h.n_k_heads, h.d_v * h.n_v_heads

    def new_cache(self) -> StateCache:
        """The convolution's last inputs (B, K - 1, channels) and the matrices (B, H, Dk, Dv)."""
        return StateCache()

    def __call__(self, x: Array, rotation: Rotation, cache: StateCache) -> Array:
        """x (B, T, C) -> (B, T, C). Positions are in the state: `rotation` is not used."""
        h, ops = self.h, self.ops
        batch, tokens, _ = x.shape
        conv, state = cache.states or (
            ops.zeros((batch, h.conv_kernel - 1, 2 * self.keys + self.values)),
            ops.zeros((batch, h.n_v_heads, h.d_k, h.d_v)),
        )
        mixed, conv = ops.conv1d_causal(ops.linear(x, self.attn_qkv), self.ssm_conv1d, conv)
        mixed = ops.silu(mixed)  # (B,T,channels): queries | keys | values
        q = mixed[..., : self.keys].reshape(batch, tokens, h.n_k_heads, h.d_k)  # (B,T,G,Dk)
        k = mixed[..., self.keys : 2 * self.keys].reshape(batch, tokens, h.n_k_heads, h.d_k)  # (B,T,G,Dk)
        v = mixed[..., 2 * self.keys :].reshape(batch, tokens, h.n_v_heads, h.d_v)  # (B,T,H,Dv)
        q, k = ops.l2_norm(q, L2_EPS) * h.d_k**-0.5, ops.l2_norm(k, L2_EPS)
        beta = ops.sigmoid(ops.linear(x, self.ssm_beta))  # (B,T,H)
        decay = self.ssm_a * ops.softplus(ops.linear(x, self.ssm_alpha) + self.ssm_dt)  # (B,T,H), at most 0
        out, state = ops.gated_delta(q, k, v, decay, beta, state)
        cache.states = (conv, state)
        gate = ops.linear(x, self.attn_gate).reshape(batch, tokens, h.n_v_heads, h.d_v)  # (B,T,H,Dv)
        out = ops.rms_norm(out, self.ssm_norm, h.rms_eps) * ops.silu(gate)
        return ops.linear(out.reshape(batch, tokens, self.values), self.ssm_out)


class DenseFFN:
    """SwiGLU."""

    def __init__(self, h: Qwen35HParams, weights: Weights, ops: Ops, blk: str) -> None:
        self.ops = ops
        self.ffn_gate = weights.matrix(f"{blk}.ffn_gate.weight")
        self.ffn_up = weights.matrix(f"{blk}.ffn_up.weight")
        self.ffn_down = weights.matrix(f"{blk}.ffn_down.weight")

    def __call__(self, x: Array) -> Array:
        """x (B, T, C) -> (B, T, C)."""
        ops = self.ops
        return ops.linear(ops.swiglu(ops.linear(x, self.ffn_gate), ops.linear(x, self.ffn_up)), self.ffn_down)


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

    def __call__(self, x: Array) -> Array:
        """x (B, T, C) -> (B, T, C)."""
        ops = self.ops
        # probabilities over all experts, then the chosen ones scaled to a sum of 1: k of E hold at least k/E of it
        chosen, experts = ops.top_k(ops.softmax(ops.linear(x, self.ffn_gate_inp)), self.h.n_expert_used)  # (B,T,K)
        share = chosen / ops.sum(chosen)
        routed = ops.moe(x, experts, share, self.ffn_gate_exps, self.ffn_up_exps, self.ffn_down_exps, ops.swiglu)
        hidden = ops.swiglu(ops.linear(x, self.ffn_gate_shexp), ops.linear(x, self.ffn_up_shexp))
        gate = ops.sigmoid(ops.sum(x * self.ffn_gate_inp_shexp))  # (B,T,1)
        return routed + gate * ops.linear(hidden, self.ffn_down_shexp)


class Block:
    """One layer: a mixer and an FFN, each behind a norm and added to the residual stream."""

    def __init__(self, h: Qwen35HParams, weights: Weights, ops: Ops, i: int) -> None:
        blk = f"blk.{i}"
        self.h, self.ops = h, ops
        self.attn_norm = weights.array(f"{blk}.attn_norm.weight")
        self.mixer = (GatedDeltaNet if h.recurrent[i] else FullAttention)(h, weights, ops, blk)
        self.post_attention_norm = weights.array(f"{blk}.post_attention_norm.weight")
        self.ffn = (MoEFFN if h.n_expert else DenseFFN)(h, weights, ops, blk)

    def __call__(self, x: Array, rotation: Rotation, cache: Any) -> Array:
        """x (B, T, C) -> (B, T, C)."""
        ops, eps = self.ops, self.h.rms_eps
        x = x + self.mixer(ops.rms_norm(x, self.attn_norm, eps), rotation, cache)
        return x + self.ffn(ops.rms_norm(x, self.post_attention_norm, eps))


class Qwen35Graph:
    """Archs ``qwen35`` and ``qwen35moe``; follows `hf2q.backends.graph.ForwardGraph`."""

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

    def hidden(self, ids: NDArray[np.int32], cache: Cache) -> Array:
        """ids (B, T) after what `cache` holds -> final, normalised hidden states (B, T, C)."""
        tokens = ids.shape[1]
        x = self.ops.embedding(self.ops.asarray(ids), self.token_embd)  # (B,T,C)
        rotation = self._rotation(cache.position, tokens)
        for block, part in zip(self.blk, cache.parts, strict=True):
            x = block(x, rotation, part)
        cache.advance(tokens)
        return self.ops.rms_norm(x, self.output_norm, self.h.rms_eps)

    def head(self, hidden: Array) -> Array:
        """(..., C) -> logits (..., V)."""
        return self.ops.linear(hidden, self.output)

    def _rotation(self, start: int, tokens: int) -> Rotation:
        # text advances time, height and width together
        positions = np.broadcast_to(np.arange(start, start + tokens), (3, tokens))[self.rope_axes].T  # (T,R)
        cos, sin = rope.table(positions, self.inverse_frequencies)
        return self.ops.asarray(cos), self.ops.asarray(sin)
