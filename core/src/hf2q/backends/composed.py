"""Ops made of other ops, for backends without a kernel of their own."""

from __future__ import annotations

from collections.abc import Sequence

from hf2q.backends.cache import KVCache, append
from hf2q.backends.ops import Array, AttentionWeights, DeltaWeights, Matrix, Ops


def delta_net(
    ops: Ops,
    x: Array,
    conv: Array,
    a: Array,
    dt: Array,
    alpha: Array,
    beta: Array,
    states: Sequence[tuple[Array, ...]],
    eps: float,
) -> tuple[Array, list[tuple[Array, ...]]]:
    """See `hf2q.backends.ops.Ops.delta_net`."""
    batch, tokens, channels = x.shape
    heads, d_k, d_v = states[0][1].shape
    keys = (channels - heads * d_v) // 2
    mixed, convs = ops.conv1d_causal(x, conv, [state[0] for state in states])
    mixed = ops.silu(mixed)
    q = mixed[..., :keys].reshape(batch, tokens, keys // d_k, d_k)  # (B,T,G,Dk)
    k = mixed[..., keys : 2 * keys].reshape(batch, tokens, keys // d_k, d_k)  # (B,T,G,Dk)
    v = mixed[..., 2 * keys :].reshape(batch, tokens, heads, d_v)  # (B,T,H,Dv)
    q, k = ops.l2_norm(q, eps) * d_k**-0.5, ops.l2_norm(k, eps)
    decay = a * ops.softplus(alpha + dt)  # (B,T,H), at most 0
    out, after = ops.gated_delta(q, k, v, decay, ops.sigmoid(beta), [state[1] for state in states])
    return out, list(zip(convs, after, strict=True))


def delta_layer(
    ops: Ops, x: Array, weights: DeltaWeights, states: Sequence[tuple[Array, ...]]
) -> tuple[Array, list[tuple[Array, ...]]]:
    """See `hf2q.backends.ops.Ops.delta_layer`."""
    w = weights
    normal = ops.rms_norm(x, w.norm, w.eps)
    mixed, gate, beta, alpha = ops.linears(normal, (w.mixed, w.gate, w.beta, w.alpha))
    out, after = ops.delta_net(mixed, w.conv, w.a, w.dt, alpha, beta, states, w.l2_eps)  # (B,T,H,Dv)
    out = ops.gated_rms_norm(out, w.head_norm, w.eps, gate.reshape(*out.shape))
    return x + ops.linear(out.reshape(*gate.shape), w.out), after


def attention_layer(
    ops: Ops, x: Array, weights: AttentionWeights, rotation: tuple[Array, Array], parts: Sequence[KVCache]
) -> Array:
    """See `hf2q.backends.ops.Ops.attention_layer`."""
    w, (batch, tokens, _) = weights, x.shape
    both, k, v = ops.linears(ops.rms_norm(x, w.norm, w.eps), (w.q, w.k, w.v))
    q = both.reshape(batch, tokens, w.heads, both.shape[-1] // w.heads)  # (B,T,H,D) or (B,T,H,2D): query | gate
    k = k.reshape(batch, tokens, w.kv_heads, w.head_dim)  # (B,T,G,D)
    v = v.reshape(batch, tokens, w.kv_heads, w.head_dim)  # (B,T,G,D)
    gate = q[..., w.head_dim :] if w.gated else None
    q = ops.rope(ops.rms_norm(q[..., : w.head_dim], w.q_norm, w.eps), *rotation)
    k = ops.rope(ops.rms_norm(k, w.k_norm, w.eps), *rotation)
    out = ops.attention(q, *append(parts, k, v), w.scale)  # (B,T,H,D)
    if gate is not None:
        out = out * ops.sigmoid(gate)
    return x + ops.linear(out.reshape(batch, tokens, w.heads * w.head_dim), w.out)


def gated_ffn(ops: Ops, x: Array, norm: Array, eps: float, gate: Matrix, up: Matrix, down: Matrix) -> Array:
    """See `hf2q.backends.ops.Ops.gated_ffn`."""
    hidden = ops.swiglu(*ops.linears(ops.rms_norm(x, norm, eps), (gate, up)))
    return x + ops.linear(hidden, down)
