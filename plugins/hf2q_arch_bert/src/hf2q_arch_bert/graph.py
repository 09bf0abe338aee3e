"""The forward passes of BERT and Nomic-BERT: encoders whose norms come after each sum.

BERT adds a table of positions to its embeddings, has biases everywhere, and GELU with the error function (llama.cpp
takes an approximation). Nomic-BERT rotates queries and keys instead, has no biases but those of norms, and SwiGLU.
Every token has type 0, as that of a first or only text. A classification head takes no part in embedding and is not
loaded. Attributes are named as the GGUF tensors.

Sources: transformers, models/bert/modeling_bert.py and models/nomic_bert/modeling_nomic_bert.py; llama.cpp,
src/models/bert.cpp and nomic-bert.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hf2q.backends import rope
from hf2q.backends.ops import Array, Ops
from hf2q.backends.weights import Weights
from hf2q_arch_bert.hparams import BertHParams

Rotation = tuple[Array, Array]


class Norm:
    """LayerNorm with weight and bias."""

    def __init__(self, h: BertHParams, weights: Weights, ops: Ops, name: str) -> None:
        self.ops, self.eps = ops, h.norm_eps
        self.weight, self.bias = weights.array(f"{name}.weight"), weights.array(f"{name}.bias")

    def __call__(self, x: Array) -> Array:
        """x (..., C) -> (..., C)."""
        return self.ops.layer_norm(x, self.weight, self.bias, self.eps)


class BertBlock:
    """Attention and a GELU FFN, all with biases."""

    def __init__(self, h: BertHParams, weights: Weights, ops: Ops, blk: str) -> None:
        self.h, self.ops = h, ops
        self.attn_q = weights.matrix(f"{blk}.attn_q.weight")
        self.attn_k = weights.matrix(f"{blk}.attn_k.weight")
        self.attn_v = weights.matrix(f"{blk}.attn_v.weight")
        self.attn_q_bias = weights.array(f"{blk}.attn_q.bias")
        self.attn_k_bias = weights.array(f"{blk}.attn_k.bias")
        self.attn_v_bias = weights.array(f"{blk}.attn_v.bias")
        self.attn_output = weights.matrix(f"{blk}.attn_output.weight")
        self.attn_output_bias = weights.array(f"{blk}.attn_output.bias")
        self.attn_output_norm = Norm(h, weights, ops, f"{blk}.attn_output_norm")
        self.ffn_up = weights.matrix(f"{blk}.ffn_up.weight")
        self.ffn_up_bias = weights.array(f"{blk}.ffn_up.bias")
        self.ffn_down = weights.matrix(f"{blk}.ffn_down.weight")
        self.ffn_down_bias = weights.array(f"{blk}.ffn_down.bias")
        self.layer_output_norm = Norm(h, weights, ops, f"{blk}.layer_output_norm")

    def __call__(self, x: Array, lengths: Sequence[int]) -> Array:
        """x (B, T, C) -> (B, T, C)."""
        h, ops = self.h, self.ops
        q, k, v = ops.linears(x, (self.attn_q, self.attn_k, self.attn_v))
        q, k, v = (
            _heads(part + bias, h)
            for part, bias in ((q, self.attn_q_bias), (k, self.attn_k_bias), (v, self.attn_v_bias))
        )
        out = ops.linear(_attention(ops, h, q, k, v, lengths), self.attn_output) + self.attn_output_bias
        x = self.attn_output_norm(x + out)
        out = ops.linear(ops.gelu(ops.linear(x, self.ffn_up) + self.ffn_up_bias), self.ffn_down) + self.ffn_down_bias
        return self.layer_output_norm(x + out)


class NomicBlock:
    """Attention over rotated queries and keys, and a SwiGLU FFN, without biases."""

    def __init__(self, h: BertHParams, weights: Weights, ops: Ops, blk: str) -> None:
        self.h, self.ops = h, ops
        self.attn_qkv = weights.matrix(f"{blk}.attn_qkv.weight")
        self.attn_output = weights.matrix(f"{blk}.attn_output.weight")
        self.attn_output_norm = Norm(h, weights, ops, f"{blk}.attn_output_norm")
        self.ffn_gate = weights.matrix(f"{blk}.ffn_gate.weight")
        self.ffn_up = weights.matrix(f"{blk}.ffn_up.weight")
        self.ffn_down = weights.matrix(f"{blk}.ffn_down.weight")
        self.layer_output_norm = Norm(h, weights, ops, f"{blk}.layer_output_norm")

    def __call__(self, x: Array, lengths: Sequence[int], rotation: Rotation) -> Array:
        """x (B, T, C) -> (B, T, C); rotation is cos and sin of the positions, (B, T, D / 2) each."""
        h, ops = self.h, self.ops
        qkv = ops.linear(x, self.attn_qkv)  # (B,T,3C): queries | keys | values
        q, k, v = (_heads(qkv[..., at * h.n_embd : (at + 1) * h.n_embd], h) for at in range(3))
        out = _attention(ops, h, ops.rope(q, *rotation), ops.rope(k, *rotation), v, lengths)
        x = self.attn_output_norm(x + ops.linear(out, self.attn_output))
        gate, up = ops.linears(x, (self.ffn_gate, self.ffn_up))
        return self.layer_output_norm(x + ops.linear(ops.swiglu(gate, up), self.ffn_down))


class BertGraph:
    """BERT; an `hf2q.backends.graph.EncoderGraph`."""

    def __init__(self, h: BertHParams, weights: Weights, ops: Ops) -> None:
        """Errors: LoadError for a file that lacks a tensor."""
        self.h, self.ops = h, ops
        self.token_embd = weights.matrix("token_embd.weight")
        self.token_types = weights.array("token_types.weight")
        self.position_embd = weights.array("position_embd.weight")
        self.token_embd_norm = Norm(h, weights, ops, "token_embd_norm")
        self.blocks = [BertBlock(h, weights, ops, f"blk.{i}") for i in range(h.n_layer)]

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return self.h.n_vocab

    def hidden(self, ids: NDArray[np.int32], lengths: Sequence[int]) -> Array:
        """ids (B, T), T at most `n_ctx`, with texts of these lengths -> final hidden states (B, T, C)."""
        ops = self.ops
        x = ops.embedding(ops.asarray(ids), self.token_embd) + self.token_types[:1]
        x = self.token_embd_norm(x + self.position_embd[: ids.shape[1]])
        for block in self.blocks:
            x = block(x, lengths)
        return x


class NomicGraph:
    """Nomic-BERT; an `hf2q.backends.graph.EncoderGraph`."""

    def __init__(self, h: BertHParams, weights: Weights, ops: Ops) -> None:
        """Errors: LoadError for a file that lacks a tensor."""
        self.h, self.ops = h, ops
        self.token_embd = weights.matrix("token_embd.weight")
        self.token_types = weights.array("token_types.weight")
        self.token_embd_norm = Norm(h, weights, ops, "token_embd_norm")
        self.blocks = [NomicBlock(h, weights, ops, f"blk.{i}") for i in range(h.n_layer)]
        self.inverse = rope.frequencies(h.head_dim, h.rope_base)

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return self.h.n_vocab

    def hidden(self, ids: NDArray[np.int32], lengths: Sequence[int]) -> Array:
        """ids (B, T) with texts of these lengths -> final hidden states (B, T, C)."""
        ops = self.ops
        cos, sin = rope.table(np.broadcast_to(np.arange(ids.shape[1]), ids.shape), self.inverse)
        rotation = ops.asarray(cos), ops.asarray(sin)
        x = self.token_embd_norm(ops.embedding(ops.asarray(ids), self.token_embd) + self.token_types[:1])
        for block in self.blocks:
            x = block(x, lengths, rotation)
        return x


def _heads(x: Array, h: BertHParams) -> Array:
    """(B, T, C) -> (B, T, H, D)."""
    return x.reshape(*x.shape[:2], h.n_head, h.head_dim)


def _attention(ops: Ops, h: BertHParams, q: Array, k: Array, v: Array, lengths: Sequence[int]) -> Array:
    """Each text sees all of itself and no padding: q, k and v (B, T, H, D) -> (B, T, C)."""
    keys, values = ([part[row, :n].transpose(1, 0, 2) for row, n in enumerate(lengths)] for part in (k, v))
    out = ops.attention(q, keys, values, h.head_dim**-0.5, causal=False)
    return out.reshape(*out.shape[:2], h.n_embd)
