"""What the caches of a sequence take."""

from __future__ import annotations

from hf2q.backends.cache import rooms
from hf2q_arch_gemma4.hparams import Gemma4HParams

FLOAT = 4


def cache_bytes(h: Gemma4HParams, tokens: int) -> int:
    """Keys and values of the blocks that have their own: those of full attention grow with the sequence."""
    windows = sum(h.sliding[: h.n_own_kv])
    growing = (h.n_own_kv - windows) * rooms(tokens) * h.n_head_kv_full * h.head_dim_full
    bounded = windows * rooms(tokens, h.n_window) * h.n_head_kv_swa * h.head_dim_swa
    return FLOAT * 2 * (growing + bounded)
