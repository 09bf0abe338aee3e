"""`Step`: what all blocks share in one call of the graph, made once on the host: token ids, rotations, masks.

Only the last `d_rope` values of a head are rotated. Here the others are rotated as well, by an angle of 0: they keep
their values exactly, and nothing has to be cut apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hf2q.backends import rope
from hf2q.backends.cache import Cache, positions
from hf2q.backends.ops import Array, Ops
from hf2q_arch_deepseek4.hparams import DeepSeek4HParams, Yarn

if TYPE_CHECKING:
    from hf2q.types import Float32

Made = TypeVar("Made")

BETA_FAST, BETA_SLOW = 32.0, 1.0
"""Where nothing else is said. Source: transformers, modeling_rope_utils.py, `_compute_yarn_parameters`."""


class Rotation(NamedTuple):
    """cos, sin and -sin (B, T, D/2)."""

    cos: Array
    sin: Array
    back: Array


class Frequencies:
    """Angle per position for each pair of values: of a head in blocks with a window alone, of one in blocks that
    compress, and of an indexer's head."""

    def __init__(self, h: DeepSeek4HParams) -> None:
        plain = rope.frequencies(h.d_rope, h.rope_base)
        compressed = rope.frequencies(h.d_rope, h.rope_base_compressed)
        if h.yarn is not None:
            compressed = stretched(compressed, h.rope_base_compressed, h.yarn)
        self.plain = _at_the_end(plain, h.d_head)
        self.compressed = _at_the_end(compressed, h.d_head)
        self.index = _at_the_end(compressed, h.d_index)


def _at_the_end(frequencies: Float32, size: int) -> Float32:
    return np.concatenate([np.zeros(size // 2 - len(frequencies), np.float32), frequencies])


def stretched(frequencies: Float32, base: float, yarn: Yarn) -> Float32:
    """YaRN: slow pairs turn slower by `factor`, fast ones as before, those between by a share.

    The family does not scale cos and sin. Source: transformers, modeling_rope_utils.py, `_compute_yarn_parameters`;
    llama.cpp, ggml/src/ggml.c, `ggml_rope_yarn_corr_dims`.
    """
    dims = 2 * len(frequencies)

    def pair(turns: float) -> float:
        """The pair that turns so often over the original context."""
        return dims * math.log(yarn.original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair(yarn.beta_fast or BETA_FAST)), 0)
    high = min(math.ceil(pair(yarn.beta_slow or BETA_SLOW)), dims - 1)
    slow = np.clip((np.arange(len(frequencies)) - low) / max(high - low, 0.001), 0, 1).astype(np.float32)
    found: Float32 = frequencies / np.float32(yarn.factor) * slow + frequencies * (1 - slow)
    return found


class Step:
    """One call: ids (B, T), which follow what the caches of the B rows hold."""

    def __init__(
        self,
        h: DeepSeek4HParams,
        ops: Ops,
        frequencies: Frequencies,
        ids: NDArray[np.int32],
        caches: Sequence[Cache],
    ) -> None:
        self.ids = ids
        self.tokens = ids.shape[1]
        self.starts = [cache.position for cache in caches]
        self._h, self._ops, self._frequencies = h, ops, frequencies
        self._places = positions(caches, self.tokens)
        self._made: dict[Hashable, object] = {}
        self.plain = self._rotation(self._places, frequencies.plain)
        self.compressed = self._rotation(self._places, frequencies.compressed)

    @property
    def index(self) -> Rotation:
        """Of queries of the indexer."""
        return self._once("index", lambda: self._rotation(self._places, self._frequencies.index))

    def entries(self, row: int, ratio: int) -> tuple[int, int]:
        """Numbers of the first entry that this call completes and of the first that it does not."""
        return self.starts[row] // ratio, (self.starts[row] + self.tokens) // ratio

    def entry_rotation(self, row: int, ratio: int, *, index: bool) -> Rotation:
        """Of these entries: each has the position of its first token."""
        start, stop = self.entries(row, ratio)
        frequencies = self._frequencies.index if index else self._frequencies.compressed
        places = np.arange(start, stop)[None] * ratio
        return self._once(("entries", start, stop, ratio, index), lambda: self._rotation(places, frequencies))

    def window_mask(self, row: int, kept: int) -> Array:
        """(T, kept): 0 for the keys of the last `kept` positions that a query sees, else -inf."""
        ago = np.arange(kept - self.tokens, kept)[:, None] - np.arange(kept)
        return self._once(("window", kept), lambda: self._mask((ago >= 0) & (ago < self._h.window)))

    def entry_mask(self, row: int, ratio: int) -> Array:
        """(T, N): 0 for entries that are complete when a query comes, its own token included, else -inf."""
        start, count = self.starts[row], self.entries(row, ratio)[1]
        complete = (np.arange(start, start + self.tokens) + 1) // ratio
        return self._once(("entry", start, ratio), lambda: self._mask(np.arange(count) < complete[:, None]))

    def mask(self, row: int, kept: int, ratio: int) -> Array:
        """(T, kept + N): both, side by side."""
        parts = self.window_mask(row, kept), self.entry_mask(row, ratio)
        return self._once(("both", self.starts[row], kept, ratio), lambda: self._ops.concat(parts, -1))

    def _mask(self, seen: NDArray[np.bool_]) -> Array:
        return self._ops.asarray(np.where(seen, np.float32(0), np.float32(-np.inf)))

    def _rotation(self, places: NDArray[np.int64], inverse: Float32) -> Rotation:
        cos, sin = rope.table(places, inverse)
        return Rotation(self._ops.asarray(cos), self._ops.asarray(sin), self._ops.asarray(-sin))

    def _once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[return-value]
