"""What the caches of a sequence take."""

from __future__ import annotations

from hf2q.backends.cache import rooms
from hf2q_arch_qwen3vl.hparams import Qwen3VLHParams

FLOAT = 4


def cache_bytes(h: Qwen3VLHParams, tokens: int) -> int:
    """Keys and values of every block."""
    return FLOAT * 2 * h.n_layer * rooms(tokens) * h.n_head_kv * h.head_dim
