"""Attention of Gemma 4: sliding windows and full, and blocks that attend to the keys and values of an earlier one.

Queries and keys are normed with weights, values without any, and scores are not scaled. Where the file has no attn_v,
the keys before their norm and rotation are the values.

Sources: transformers, models/gemma4/modeling_gemma4.py, `Gemma4TextAttention`; llama.cpp, src/models/gemma4.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hf2q.backends import rope
from hf2q.backends.cache import Cache, KVCache, append, layers, positions
from hf2q.backends.ops import Array, Ops
from hf2q.backends.weights import Weights
from hf2q.errors import LoadError
from hf2q_arch_gemma4.graph_images import Sight
from hf2q_arch_gemma4.hparams import Gemma4HParams

STILL = 1e-20
"""A frequency below it turns nothing at any position that a model can reach, not even by a float32 rounding."""

Rotation = tuple[Array, Array]
KeysValues = tuple[list[Array], list[Array]]


class Rotations:
    """Rotary tables of both kinds of attention; `rope_freqs` is what frequencies of full attention are divided by.

    Errors: LoadError for one that cannot divide.
    """

    def __init__(self, h: Gemma4HParams, weights: Weights, ops: Ops) -> None:
        self.ops = ops
        self.rope_freqs = ops.to_numpy(weights.array("rope_freqs.weight"))  # (D/2,)
        if not (np.isfinite(self.rope_freqs) & (self.rope_freqs != 0)).all():
            raise LoadError(
                "rope_freqs.weight has values that are 0 or not finite, expected numbers to divide frequencies by",
                hint="the file is damaged; convert the model again",
            )
        full = rope.frequencies(h.head_dim_full, h.rope_base_full) / self.rope_freqs
        # exactly 0, as transformers has it: products with numbers near 1e-38 are slow on many CPUs
        self.full = np.where(np.abs(full) < STILL, np.float32(0), full)
        self.swa = rope.frequencies(h.head_dim_swa, h.rope_base_swa)

    def __call__(self, caches: Sequence[Cache], tokens: int) -> dict[bool, Rotation]:
        """cos and sin (B, T, D/2) for the next `tokens` tokens, by whether attention is sliding."""
        places = positions(caches, tokens)
        return {False: self._table(places, self.full), True: self._table(places, self.swa)}

    def _table(self, places: NDArray[np.int64], inverse: NDArray[np.float32]) -> Rotation:
        cos, sin = rope.table(places, inverse)
        return self.ops.asarray(cos), self.ops.asarray(sin)


class Memory:
    """Keys and values in one call of the graph: what blocks add to their caches, other blocks of their kind see too.

    sight  who sees whom where attention is sliding, if tokens see later ones in this call
    """

    def __init__(self, caches: Sequence[Cache], sight: Sight | None = None) -> None:
        self.sight = sight
        self._parts = layers(caches)
        self._last: dict[bool, KeysValues] = {}

    def add(self, sliding: bool, keys: Array, values: Array) -> KeysValues:
        """For the next block that has some: (B, T, G, D) each; gives, for each row, those of all tokens (G, S, D)."""
        self._last[sliding] = append(next(self._parts), keys, values)
        return self._last[sliding]

    def last(self, sliding: bool) -> KeysValues:
        """What the last block of the kind saw."""
        return self._last[sliding]


class Attention:
    """Grouped-query attention of block `i`; one that shares keys and values has queries only."""

    def __init__(self, h: Gemma4HParams, weights: Weights, ops: Ops, i: int) -> None:
        blk = f"blk.{i}"
        self.h, self.ops, self.sliding = h, ops, h.sliding[i]
        self.window = h.n_window if self.sliding else 0
        self.head_dim = h.head_dim_swa if self.sliding else h.head_dim_full
        self.own = i < h.n_own_kv
        self.attn_q = weights.matrix(f"{blk}.attn_q.weight")
        self.attn_q_norm = weights.array(f"{blk}.attn_q_norm.weight")
        self.attn_output = weights.matrix(f"{blk}.attn_output.weight")
        if self.own:
            self.attn_k = weights.matrix(f"{blk}.attn_k.weight")
            self.attn_k_norm = weights.array(f"{blk}.attn_k_norm.weight")
            # only full attention may use its keys as values: elsewhere a missing attn_v is an error
            reused = not self.sliding and f"{blk}.attn_v.weight" not in weights
            self.attn_v = None if reused else weights.matrix(f"{blk}.attn_v.weight")

    def new_part(self) -> KVCache:
        """Keys and values, of a window only where attention is sliding."""
        return KVCache(self.ops, self.window)

    def __call__(self, x: Array, rotation: Rotation, memory: Memory) -> Array:
        """x (B, T, C) -> (B, T, C)."""
        ops = self.ops
        q, keys_values = self._own(x, rotation, memory) if self.own else self._shared(x, memory)
        q = ops.rope(ops.rms_norm(self._heads(q), self.attn_q_norm, self.h.rms_eps), *rotation)
        if self.sliding and memory.sight is not None:
            masks = memory.sight.masks(keys_values[0])
            out = ops.attention(q, *keys_values, 1.0, causal=False, window=self.window, masks=masks)  # (B,T,H,D)
        else:
            out = ops.attention(q, *keys_values, 1.0, window=self.window)
        batch, tokens, heads, size = out.shape
        return ops.linear(out.reshape(batch, tokens, heads * size), self.attn_output)

    def _own(self, x: Array, rotation: Rotation, memory: Memory) -> tuple[Array, KeysValues]:
        ops, eps = self.ops, self.h.rms_eps
        matrices = [self.attn_q, self.attn_k, *([] if self.attn_v is None else [self.attn_v])]
        q, *rest = ops.linears(x, matrices)
        k, v = self._heads(rest[0]), self._heads(rest[-1])  # (B,T,G,D)
        k = ops.rope(ops.rms_norm(k, self.attn_k_norm, eps), *rotation)
        return q, memory.add(self.sliding, k, ops.rms_norm(v, None, eps))

    def _shared(self, x: Array, memory: Memory) -> tuple[Array, KeysValues]:
        return self.ops.linear(x, self.attn_q), memory.last(self.sliding)

    def _heads(self, x: Array) -> Array:
        batch, tokens, width = x.shape
        return x.reshape(batch, tokens, width // self.head_dim, self.head_dim)
