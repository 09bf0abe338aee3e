"""The gated delta rule on MLX: token by token when decoding, in chunks when prefilling.

The chunked form turns the recurrence inside a chunk into matrix products (Yang et al., Gated Delta Networks,
arXiv 2412.06464, section 3.3; transformers, modeling_qwen3_5.py, torch_chunk_gated_delta_rule). With G the running
sum of decays in a chunk and S the state before it:

    A_ij = beta_i (k_i·k_j) e^(G_i - G_j)  for j < i          T = (I + A)⁻¹
    U = T (beta V),   W = T (beta e^G K),   V' = U - W S
    O_i = e^(G_i) q_i S + Σ_(j ≤ i) (q_i·k_j) e^(G_i - G_j) V'_j
    S ← e^(G_C) S + Σ_j e^(G_C - G_j) k_j ⊗ V'_j

Exponents of differences are taken only where they are ≤ 0, so nothing overflows.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from hf2q.backends.mlx import cuda_delta

CHUNK = 64
"""Tokens in a chunk. Source: transformers, torch_chunk_gated_delta_rule."""

STEPS = 8
"""Tokens up to which they are taken one by one; with more, a chunk's inverse is worth it."""


def gated_delta(q: Any, k: Any, v: Any, decay: Any, beta: Any, state: Any) -> tuple[Any, Any]:
    """See `hf2q.backends.ops.Ops.gated_delta`; here the states of all rows are one array (B, H, Dk, Dv)."""
    tokens, repeats = q.shape[1], v.shape[2] // q.shape[2]
    if tokens <= STEPS:
        return _steps(q, k, v, mx.exp(decay), beta, state)
    if repeats > 1:  # tiled, not interleaved: value head h uses key head h mod G
        q, k = mx.tile(q, (1, 1, repeats, 1)), mx.tile(k, (1, 1, repeats, 1))
    return _chunks(q, k, v, decay, beta, state)


def _steps(q: Any, k: Any, v: Any, keep: Any, beta: Any, state: Any) -> tuple[Any, Any]:
    """Token by token; `keep` is e^decay. Value head h = r·G + g uses key head g, with axes (B, R, G) for H."""
    batch, tokens, groups, d_k = q.shape
    heads, d_v = v.shape[2:]
    repeats = heads // groups
    state = state.reshape(batch, repeats, groups, d_k, d_v)
    v = v.reshape(batch, tokens, repeats, groups, 1, d_v)
    keep, beta = (x.reshape(batch, tokens, repeats, groups, 1, 1) for x in (keep, beta))
    outs = []
    for token in range(tokens):
        key = k[:, token, None]  # (B,1,G,Dk)
        error = beta[:, token] * (v[:, token] - keep[:, token] * (key[..., None, :] @ state))  # (B,R,G,1,Dv)
        state = keep[:, token] * state + key[..., None] * error
        outs.append(q[:, token, None, :, None] @ state)
    out = outs[0] if tokens == 1 else mx.concatenate(outs, axis=-2)  # (B,R,G,T,Dv)
    out = mx.swapaxes(out.reshape(batch, heads, tokens, d_v), 1, 2)
    return out, state.reshape(batch, heads, d_k, d_v)


def _chunks(q: Any, k: Any, v: Any, decay: Any, beta: Any, state: Any) -> tuple[Any, Any]:
    batch, tokens, heads, _ = q.shape
    size = min(CHUNK, tokens)
    count = -(-tokens // size)
    spare = count * size - tokens  # padded steps are inert: beta 0 writes nothing, decay 0 keeps the state

    def split(x: Any) -> Any:
        x = mx.pad(x, [(0, 0), (0, spare)] + [(0, 0)] * (x.ndim - 2))
        return mx.swapaxes(x, 1, 2).reshape(batch, heads, count, size, *x.shape[3:])  # (B,H,N,C,...)

    q, k, v, decay, beta = (split(x) for x in (q, k, v, decay, beta))
    total = mx.cumsum(decay, axis=-1)  # G (B,H,N,C)
    row = mx.arange(size)
    lower = row[:, None] >= row[None, :]
    # beyond the diagonal the exponent would be positive: masked before it is taken
    ratio = mx.where(lower, mx.exp(mx.where(lower, total[..., :, None] - total[..., None, :], 0.0)), 0.0)
    keys = mx.swapaxes(k, -1, -2)
    a = mx.where(row[:, None] > row[None, :], (beta[..., None] * k) @ keys * ratio, 0.0)
    solved = _unit_lower_inverse(a)  # T
    writes = solved @ (beta[..., None] * v)  # U (B,H,N,C,Dv)
    reads = solved @ ((beta * mx.exp(total))[..., None] * k)  # W (B,H,N,C,Dk)
    inside = (q @ keys) * ratio
    queries = q * mx.exp(total)[..., None]
    last = total[..., -1:]
    carry = keys * mx.exp(last - total)[..., None, :]
    keep = mx.exp(last)[..., None]
    outs = []
    for n in range(count):
        fresh = writes[:, :, n] - reads[:, :, n] @ state  # V' (B,H,C,Dv)
        outs.append(queries[:, :, n] @ state + inside[:, :, n] @ fresh)
        state = keep[:, :, n] * state + carry[:, :, n] @ fresh
    out = mx.concatenate(outs, axis=2)[:, :, :tokens]  # (B,H,T,Dv)
    return mx.swapaxes(out, 1, 2), state


def _unit_lower_inverse(a: Any) -> Any:
    """(I + a)⁻¹ for strictly lower triangular a (..., C, C), by substitution.

    A series in powers of `a` would need fewer steps, but cancels badly where a chunk repeats one key. MLX's
    inverse exists on the CPU only, for which a GPU's work has to end: an NVIDIA GPU has a kernel of ours instead.
    """
    if cuda_delta.inverts(a.shape[-1]):
        return cuda_delta.unit_lower_inverse(a)
    return mx.linalg.tri_inv(a + mx.eye(a.shape[-1]), upper=False, stream=mx.cpu)
