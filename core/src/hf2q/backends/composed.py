"""Ops made of other ops, for backends without a kernel of their own."""

from __future__ import annotations

from collections.abc import Sequence

from hf2q.backends.ops import Array, Ops


def delta_net(
    ops: Ops,
    x: Array,
    conv: Array,
    a: Array,
    dt: Array,
    alpha: Array,
    beta: Array,
    states: Sequence[tuple[Array, Array]],
    eps: float,
) -> tuple[Array, list[tuple[Array, Array]]]:
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
