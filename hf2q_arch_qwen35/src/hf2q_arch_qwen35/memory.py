"""What the caches of a sequence take."""

from __future__ import annotations

from hf2q.backends.cache import rooms
from hf2q_arch_qwen35.hparams import Qwen35HParams

FLOAT = 4


def cache_bytes(h: Qwen35HParams, tokens: int) -> int:
    """Keys and values of full attention grow with the sequence; linear attention keeps states of one size.

    Where states have the usual width, the cpu backend lets eight updates wait beside each: an eighth more, counted for
    all backends. See `hf2q.backends.cpu.kernels.pending`.
    """
    linear = sum(h.recurrent[: h.n_trunk])
    growing = (h.n_trunk - linear) * rooms(tokens) * h.n_head_kv * 2 * h.head_dim
    waiting = 16 + 8 * (h.d_k + h.d_v) if h.d_v == 128 else 0
    state = (h.conv_kernel - 1) * h.symbols["n_qkv"] + h.n_v_heads * (h.d_k * h.d_v + waiting)
    return FLOAT * (growing + linear * state)
