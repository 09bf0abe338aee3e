"""Images among the tokens of a sequence, as the text model of Gemma 4 takes them.

In models without per-layer inputs the tokens of an image see each other, those behind them too, where attention is
sliding; in full attention, and in models with per-layer inputs, they see earlier ones only, as text does. That is what
the configs of all published models say (``use_bidirectional_attention``: ``vision`` for 26B-A4B and 31B, null for E2B
and E4B). GGUF has no key for it; llama.cpp goes by the width of the text model, with the same result for these.

Sources: transformers, models/gemma4/modeling_gemma4.py, `Gemma4Model.forward` and `create_masks_for_vision_model`;
llama.cpp, tools/mtmd/mtmd.cpp, `mtmd_decode_use_non_causal`; src/models/gemma4.cpp, `build_inp_per_layer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hf2q.backends.cache import Cache
from hf2q.backends.media import Media
from hf2q.backends.ops import Array, Ops
from hf2q.errors import UsageError

PADDING = 0
"""The token whose per-layer inputs the tokens of an image get."""


def without_images(ids: NDArray[np.int32], caches: Sequence[Cache], media: Media) -> NDArray[np.int32]:
    """ids (B, T) with `PADDING` where images are. Before the caches are advanced."""
    if not media:
        return ids
    ids = ids.copy()
    for row, start, end in _spans(caches, ids.shape[1], media):
        ids[row, max(start, 0) : end] = PADDING
    return ids


class Sight:
    """Who sees whom in a call in which the tokens of an image see each other. Made before the caches are advanced.

    Errors: UsageError for an image that goes in only in part.
    """

    def __init__(self, ops: Ops, caches: Sequence[Cache], tokens: int, media: Media) -> None:
        self._ops, self._tokens, self._rows = ops, tokens, len(caches)
        self._spans = list(_spans(caches, tokens, media))
        for _, start, end in self._spans:
            if start < 0 or end > tokens:
                raise UsageError(
                    f"tokens {max(-start, 0)} to {min(end, tokens) - start} of an image of {end - start} go in alone; "
                    "they see each other, so all of them must be in one call"
                )
        self._made: dict[tuple[int, ...], list[Array]] = {}

    def masks(self, keys: Sequence[Array]) -> list[Array]:
        """For each row (T, S) to add to scores, where its keys are (G, S, D): -inf for what comes later, else 0."""
        lengths = tuple(array.shape[1] for array in keys)
        if lengths not in self._made:
            self._made[lengths] = [self._ops.asarray(self._mask(row, total)) for row, total in enumerate(lengths)]
        return self._made[lengths]

    def _mask(self, row: int, total: int) -> NDArray[np.float32]:
        earlier = total - self._tokens
        later = np.arange(total) > np.arange(earlier, total)[:, None]
        for at, start, end in self._spans:
            if at == row:
                later[start:end, earlier + start : earlier + end] = False
        return np.where(later, np.float32(-np.inf), np.float32(0))


def _spans(caches: Sequence[Cache], tokens: int, media: Media) -> Iterator[tuple[int, int, int]]:
    """Row, first token and end of each image that has tokens in the call, counted from the beginning of the call."""
    for row, (cache, images) in enumerate(zip(caches, media, strict=True) if media else ()):
        for placed in images:
            start, end = placed.place - cache.position, placed.end - cache.position
            if start < tokens and end > 0:
                yield row, start, end
