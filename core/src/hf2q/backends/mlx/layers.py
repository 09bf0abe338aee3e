"""What `MlxOps` is made of where several operations belong together, as functions that MLX can trace.

Arguments are arrays, constants, and tuples of both: a matrix comes as its `parts` (`hf2q.backends.mlx.matrix`). The
contract of each function is that of the op of its name in `hf2q.backends.ops`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from hf2q.backends.mlx import cuda_delta, delta
from hf2q.backends.mlx.cuda import BlockMatrix, times_all
from hf2q.backends.mlx.matrix import whole
from hf2q.backends.ops import DeltaWeights

# ------------------------------------------------------------------------------------------------------ elementwise


def silu(x: Any) -> Any:
    return x * mx.sigmoid(x)


def gelu(x: Any) -> Any:
    return x * 0.5 * (1 + mx.erf(x * math.sqrt(0.5)))


def gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def softcap(x: Any, cap: float) -> Any:
    return cap * mx.tanh(x / cap)


def geglu(gate: Any, up: Any) -> Any:
    return gelu_tanh(gate) * up


def swiglu(gate: Any, up: Any) -> Any:
    return gate * mx.sigmoid(gate) * up


# --------------------------------------------------------------------------------------------------------- products


def linear(x: Any, weight: Any) -> Any:
    return whole(weight).times(x)


def linear_plus(x: Any, weight: Any, before: Any) -> Any:
    """before + `linear`."""
    matrix = whole(weight)
    return matrix.times_plus(x, before) if isinstance(matrix, BlockMatrix) else before + matrix.times(x)


def linears(x: Any, weights: Sequence[Any]) -> tuple[Any, ...]:
    matrices = [whole(weight) for weight in weights]
    found: list[Any] = [None] * len(matrices)
    for i, first in enumerate(matrices):
        if not isinstance(first, BlockMatrix):
            found[i] = first.times(x)
        elif found[i] is None:
            alike = {
                j: other for j, other in enumerate(matrices) if isinstance(other, BlockMatrix) and first.joins(other)
            }
            for j, product in zip(alike, times_all(x, list(alike.values())), strict=True):
                found[j] = product
    return tuple(found)


def grouped_linear(x: Any, weight: Any) -> Any:
    groups = mx.broadcast_to(mx.arange(x.shape[2]), x.shape[:3])
    return whole(weight).gather_times(x[..., None, :], groups)[..., 0, :]


def experts_in(x: Any, experts: Any, gate_up: Sequence[Any]) -> tuple[Any, Any]:
    """The first half of `moe`: x (B, T, C) -> gate and up of each of its experts, (B, T, K, 1, F)."""
    x = x[:, :, None, None]  # (B,T,1,1,C)
    both = [whole(weight).gather_times(x, experts) for weight in gate_up]  # (B,T,K,1,F) twice, or (B,T,K,1,2F)
    gate, up = both if len(both) == 2 else mx.split(both[0], 2, axis=-1)
    return gate, up


def experts_out(hidden: Any, experts: Any, weights: Any, down: Any) -> Any:
    """The second half of `moe`, after the activation: (B, T, K, 1, F) -> (B, T, C)."""
    each = whole(down).gather_times(hidden, experts)[..., 0, :]  # (B,T,K,C)
    return (each * weights[..., None]).sum(axis=-2)


def gated_ffn(x: Any, norm: Any, eps: float, gate: Any, up: Any, down: Any) -> Any:
    hidden = swiglu(*linears(mx.fast.rms_norm(x, norm, eps), (gate, up)))
    return linear_plus(hidden, down, x)


# ------------------------------------------------------------------------------------------------ over the last axis


def l2_norm(x: Any, eps: float) -> Any:
    """x / sqrt(Σ x² + eps) is the RMS norm with eps / d, divided by sqrt(d): one operation instead of four."""
    size = x.shape[-1]
    return mx.fast.rms_norm(x, None, eps / size) * size**-0.5


def gated_rms_norm(x: Any, weight: Any, eps: float, gate: Any) -> Any:
    return mx.fast.rms_norm(x, weight, eps) * silu(gate)


def sinkhorn(x: Any, iterations: int, eps: float) -> Any:
    share = mx.softmax(x, axis=-1, precise=True) + eps
    share = share / (share.sum(axis=-2, keepdims=True) + eps)
    for _ in range(iterations - 1):
        share = share / (share.sum(axis=-1, keepdims=True) + eps)
        share = share / (share.sum(axis=-2, keepdims=True) + eps)
    return share


# ------------------------------------------------------------------------------------------------------ over tokens


def rope(x: Any, cos: Any, sin: Any, pairs: bool) -> Any:
    size = cos.shape[-1]
    turned = x[..., : 2 * size]
    if pairs:
        both = turned.reshape(*x.shape[:-1], size, 2)
        a, b = both[..., 0:1], both[..., 1:2]
        cos, sin = cos[:, :, None, :, None], sin[:, :, None, :, None]  # (B,T,1,R,1): the same for every head
        first = mx.array([[True, False]] * size)
    else:
        both = turned.reshape(*x.shape[:-1], 2, size)
        a, b = both[..., 0:1, :], both[..., 1:2, :]
        cos, sin = cos[:, :, None, None], sin[:, :, None, None]  # (B,T,1,1,R)
        first = mx.array([[True] * size, [False] * size])
    # both halves in one elementwise expression, which is fused: a cos - b sin beside a sin + b cos
    both = (a * mx.where(first, cos, sin) + b * mx.where(first, -sin, cos)).reshape(turned.shape)
    return both if turned.shape == x.shape else mx.concatenate([both, x[..., 2 * size :]], axis=-1)


def conv1d_causal(x: Any, weight: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
    tokens, taps = x.shape[1], weight.shape[1]
    known = mx.concatenate([mx.stack(list(states)), x], axis=1)  # (B, K - 1 + T, C)
    out = known[:, :tokens] * weight[:, 0]
    for tap in range(1, taps):
        out = out + known[:, tap : tap + tokens] * weight[:, tap]
    if len(states) == 1 and tokens < taps:
        return out, [known[0, tokens:]]  # of one sequence's last few inputs: not worth a copy
    # contiguous copies: views would keep all of `known` in memory
    return out, [mx.contiguous(row) for row in known[:, tokens:]]


def gated_delta(q: Any, k: Any, v: Any, decay: Any, beta: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
    out, state = delta.gated_delta(q, k, v, decay, beta, mx.stack(list(states)))
    return out, [mx.contiguous(row) for row in state] if len(states) > 1 else list(state)


def delta_net(
    x: Any,
    conv: Any,
    a: Any,
    dt: Any,
    alpha: Any,
    beta: Any,
    states: Sequence[tuple[Any, Any]],
    eps: float,
) -> tuple[Any, list[tuple[Any, Any]]]:
    d_k = states[0][1].shape[-2]
    out, after = _delta_net(x, conv, a, dt, alpha, beta, states, eps)
    return out * d_k**-0.5, after


def delta_layer(x: Any, weights: Sequence[Any], states: Sequence[tuple[Any, Any]]) -> tuple[Any, list[Any]]:
    w: Any = DeltaWeights(*weights)
    d_k, d_v = states[0][1].shape[-2:]
    mixed, gate, beta, alpha = linears(mx.fast.rms_norm(x, w.norm, w.eps), (w.mixed, w.gate, w.beta, w.alpha))
    if x.shape[1] <= delta.STEPS and cuda_delta.fits(d_k, d_v, w.conv.shape[1]):
        out, after = cuda_delta.between(
            mixed, gate, alpha, beta, w.conv, w.a, w.dt, w.head_norm, states, w.l2_eps, w.eps
        )
        return linear_plus(out, w.out, x), after
    out, after = _delta_net(mixed, w.conv, w.a, w.dt, alpha, beta, states, w.l2_eps)  # (B,T,H,Dv)
    # the factor Dk^-1/2 that `_delta_net` leaves out cancels in the norm, but for eps
    out = gated_rms_norm(out, w.head_norm, w.eps * d_k, gate.reshape(*out.shape))
    return linear_plus(out.reshape(*gate.shape), w.out, x), after


def _delta_net(
    x: Any,
    conv: Any,
    a: Any,
    dt: Any,
    alpha: Any,
    beta: Any,
    states: Sequence[tuple[Any, Any]],
    eps: float,
) -> tuple[Any, list[tuple[Any, Any]]]:
    """`delta_net` without the factor Dk^-1/2 on queries, and so on what comes out."""
    batch, tokens, channels = x.shape
    heads, d_k, d_v = states[0][1].shape
    keys = (channels - heads * d_v) // 2
    mixed, convs = conv1d_causal(x, conv, [state[0] for state in states])
    mixed = silu(mixed)
    both = mixed[..., : 2 * keys].reshape(batch, tokens, 2 * keys // d_k, d_k)  # (B,T,2G,Dk): queries, then keys
    v = mixed[..., 2 * keys :].reshape(batch, tokens, heads, d_v)  # (B,T,H,Dv)
    # their L2 norm, as in `l2_norm`, with the factor as weights
    both = mx.fast.rms_norm(both, mx.array([d_k**-0.5] * d_k), eps / d_k)
    q, k = both[:, :, : keys // d_k], both[:, :, keys // d_k :]  # (B,T,G,Dk)
    decay = a * mx.logaddexp(alpha + dt, mx.array(0.0))  # (B,T,H), at most 0
    out, after = gated_delta(q, k, v, decay, mx.sigmoid(beta), [state[1] for state in states])
    return out, list(zip(convs, after, strict=True))
