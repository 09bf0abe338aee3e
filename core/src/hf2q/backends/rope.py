"""Rotary position tables: computed once for each call of a graph, on the host, the same for every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hf2q.errors import LoadError

if TYPE_CHECKING:
    from hf2q.types import Float32


def frequencies(dims: int, base: float) -> Float32:
    """base^(-2j/dims) for j = 0 … dims/2 - 1, float32."""
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    return (1.0 / np.float32(base) ** exponents).astype(np.float32)


def table(positions: NDArray[np.integer], inverse: Float32) -> tuple[Float32, Float32]:
    """cos and sin (B, T, R) of position × frequency.

    `positions` (B, T) gives every pair the same position, (B, T, R) each pair its own (M-RoPE). The product is taken in
    float32, as transformers and ggml do: at long contexts that rounding is part of what a model was trained with.
    """
    angles = positions.reshape(*positions.shape[:2], -1).astype(np.float32) * inverse
    return np.cos(angles), np.sin(angles)


def interleaved_axes(sections: Sequence[int], pairs: int, *, spill: bool = False) -> NDArray[np.intp]:
    """Which position axis (0 time, 1 height, 2 width) each of `pairs` rotary pairs follows in interleaved M-RoPE.

    Pairs 1, 4, … below 3·sections[1] follow the height, 2, 5, … below 3·sections[2] the width, 0, 3, … below
    3·sections[0] the time. Source: llama.cpp, ggml/src/ggml-cpu/ops.cpp, ggml_mrope_cache_init; transformers,
    modeling_qwen3_5.py, apply_interleaved_mrope.

    Pairs that are left over (61 and 62 of 64 with the published sections 24, 20, 20) follow the time in transformers,
    and stay unturned in llama.cpp. With `spill` they follow the time.

    Errors: LoadError, without `spill`, when the sections leave a pair without an axis.
    """
    index = np.arange(pairs)
    axes = index % 3
    limits = np.asarray([*sections, 0, 0, 0][:3])
    left = index >= 3 * limits[axes]
    if left.any() and not spill:
        raise LoadError(f"rope sections {list(sections)} do not cover {pairs} rotary pairs in turns of three")
    return np.where(left, 0, axes)
