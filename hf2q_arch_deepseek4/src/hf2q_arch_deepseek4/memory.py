"""What the caches of a sequence take."""

from __future__ import annotations

from hf2q.backends.cache import AT_ONCE
from hf2q_arch_deepseek4.graph_cache import STEP
from hf2q_arch_deepseek4.hparams import DeepSeek4HParams

FLOAT = 4


def cache_bytes(h: DeepSeek4HParams, tokens: int) -> int:
    """For each block a window of keys; with compression also the rows that become entries, and the entries."""

    def rooms(count: int, keep: int | None = None) -> int:
        held = count if keep is None else min(count, 2 * keep + STEP + AT_ONCE)
        return -(-held // STEP) * STEP

    total = 0
    for ratio in h.compress_ratios[: h.n_layer]:
        total += rooms(tokens, h.window - 1) * h.d_head
        if not ratio:
            continue
        overlap = 2 if ratio == 4 else 1
        sizes = [h.d_head, *([h.d_index] if ratio == 4 else [])]
        pending = rooms(tokens, overlap * ratio - 1) * 2 * overlap
        total += sum((pending + rooms(tokens // ratio)) * size for size in sizes)
    return FLOAT * total
