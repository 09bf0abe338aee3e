"""Hyper-connections: a block's input is mixed from several residual streams, and its output spread over them.

Source: transformers, models/deepseek_v4/modeling_deepseek_v4.py, `DeepseekV4HyperConnection`, `DeepseekV4HyperHead`,
`DeepseekV4DecoderLayer`; llama.cpp, src/models/deepseek4.cpp, `build_hc_pre`, `build_hc_post`, `build_hc_sinkhorn`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hf2q.backends.ops import Array, Ops
from hf2q.backends.weights import Weights
from hf2q_arch_deepseek4.hparams import DeepSeek4HParams


class HyperConnection:
    """Around one half of a block; `name` is ``blk.0.hc_attn`` or the like."""

    def __init__(self, h: DeepSeek4HParams, weights: Weights, ops: Ops, name: str) -> None:
        self.h, self.ops = h, ops
        self.fn = weights.matrix(f"{name}_fn.weight")
        self.base = weights.array(f"{name}_base.weight")
        n = h.n_streams
        # one factor for each of the three kinds of coefficients, for as many as there are of it
        scale = ops.to_numpy(weights.array(f"{name}_scale.weight"))
        self.scale = ops.asarray(np.repeat(scale, [n, n, n * n]))

    def __call__(self, streams: Array, inner: Callable[[Array], Array]) -> Array:
        """streams (B, T, N, C) -> the same after `inner`: (B, T, C) -> (B, T, C)."""
        ops, n, eps = self.ops, self.h.n_streams, self.h.hc_eps
        batch, tokens, _, size = streams.shape
        mix = ops.linear(_normal(ops, streams, self.h), self.fn) * self.scale + self.base  # (B,T,N+N+N·N)
        take = ops.sigmoid(mix[..., :n]) + eps  # (B,T,N)
        give = 2 * ops.sigmoid(mix[..., n : 2 * n])  # (B,T,N)
        # row: stream it comes from, column: stream it goes to
        carry = ops.sinkhorn(mix[..., 2 * n :].reshape(batch, tokens, n, n), self.h.sinkhorn, eps)
        out = inner(_weighted(ops, take, streams))
        spread = give.reshape(batch, tokens, n, 1) * out.reshape(batch, tokens, 1, size)
        return spread + ops.matmul(carry.transpose(0, 1, 3, 2), streams)


class HyperHead:
    """The end of the streams."""

    def __init__(self, h: DeepSeek4HParams, weights: Weights, ops: Ops) -> None:
        self.h, self.ops = h, ops
        self.output_hc_fn = weights.matrix("output_hc_fn.weight")
        self.output_hc_base = weights.array("output_hc_base.weight")
        self.output_hc_scale = weights.array("output_hc_scale.weight")

    def __call__(self, streams: Array) -> Array:
        """(B, T, N, C) -> (B, T, C)."""
        ops = self.ops
        mix = ops.linear(_normal(ops, streams, self.h), self.output_hc_fn)  # (B,T,N)
        take = ops.sigmoid(mix * self.output_hc_scale + self.output_hc_base) + self.h.hc_eps
        return _weighted(ops, take, streams)


def _normal(ops: Ops, streams: Array, h: DeepSeek4HParams) -> Array:
    """All streams of a token as one vector (B, T, N·C), normalised without weights."""
    return ops.rms_norm(streams.reshape(*streams.shape[:2], h.n_streams * h.n_embd), None, h.rms_eps)


def _weighted(ops: Ops, share: Array, streams: Array) -> Array:
    """Σ_n share (B, T, N) · streams (B, T, N, C)."""
    batch, tokens, n, size = streams.shape
    return ops.matmul(share.reshape(batch, tokens, 1, n), streams).reshape(batch, tokens, size)
