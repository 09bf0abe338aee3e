"""`Sequence`: token ids in, logits out, with everything a graph remembers between calls."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from hf2q.backends.cache import Cache
from hf2q.backends.graph import ForwardGraph, SeeingGraph
from hf2q.backends.media import PlacedImage
from hf2q.backends.ops import Array, Ops
from hf2q.errors import RequestError

if TYPE_CHECKING:
    from hf2q.types import Float32


TokenIds: TypeAlias = Ids[int] | NDArray[np.integer]
"""What a caller may give as token ids."""


def token_ids(ids: TokenIds, n_vocab: int) -> NDArray[np.int32]:
    """`ids` as int32 (T,). Errors: RequestError for anything but at least one id of the vocabulary."""
    try:
        array = np.asarray(ids)
    except ValueError as error:  # lists of different lengths
        raise RequestError(f"expected a sequence of token ids: {error}", param="prompt") from error
    if array.size == 0:
        raise RequestError("expected a sequence of token ids, found no tokens", param="prompt")
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        found = f"{type(ids).__name__} that numpy reads as {array.dtype} of shape {array.shape}"
        raise RequestError(f"expected a sequence of token ids, found a {found}", param="prompt")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= n_vocab:
        wrong = low if low < 0 else high
        raise RequestError(f"token id {wrong} is outside the vocabulary of {n_vocab} tokens", param="prompt")
    return array.astype(np.int32)


class Sequence:
    """One sequence of tokens on a graph. Not thread-safe, but any thread may use it next.

    Everything is computed before a call returns. After an error its state is undefined: drop it.
    """

    def __init__(
        self, graph: ForwardGraph, ops: Ops, cache: Cache | None = None, images: Ids[PlacedImage] = ()
    ) -> None:
        """`images` stand in for tokens at the positions that they name, when these are fed."""
        self._graph = graph
        self._ops = ops
        self._images = tuple(images)
        self._cache = graph.new_cache() if cache is None else cache

    @property
    def position(self) -> int:
        """Number of tokens fed so far."""
        return self._cache.position

    @property
    def cache(self) -> Cache:
        """What it remembers. Whoever changes it changes the sequence."""
        return self._cache

    def resume(self, cache: Cache) -> None:
        """Go on from the state in `cache`, which is taken over."""
        self._cache = cache

    def prefill(self, ids: TokenIds) -> None:
        """Feed tokens whose logits nobody needs."""
        self._hidden(ids)
        self._ops.eval(*self._cache.arrays())

    def next_logits(self, ids: TokenIds) -> Float32:
        """Feed tokens; logits float32 (V,) for the token after them."""
        hidden = self._hidden(ids)
        logits: Float32 = self._computed(hidden[:, -1:])[0]
        return logits

    def all_logits(self, ids: TokenIds) -> Float32:
        """Feed tokens; logits float32 (T, V) after each of them."""
        return self._computed(self._hidden(ids))

    def cut(self, position: int) -> int:
        """Where to cut the tokens to feed, at `position` or behind it: some graphs take images as a whole only."""
        if not any(image.place < position < image.end for image in self._images):
            return position
        if not cast("SeeingGraph", self._graph).whole_images:
            return position
        return next(image.end for image in self._images if image.place < position < image.end)

    def _hidden(self, ids: TokenIds) -> Array:
        if not self._images:
            return self._graph.hidden(self._batch(ids), [self._cache])
        return cast("SeeingGraph", self._graph).hidden(self._batch(ids), [self._cache], [self._images])

    def _computed(self, hidden: Array) -> Float32:
        logits = self._graph.head(hidden)
        values: Float32 = self._ops.computed(logits, self._cache.arrays())[0]
        return values

    def _batch(self, ids: TokenIds) -> NDArray[np.int32]:
        return token_ids(ids, self._graph.n_vocab)[None]  # (1,T)

    def trim(self, position: int) -> None:
        """Go back to the first `position` tokens. Errors: UsageError where the graph's caches cannot."""
        self._cache.trim(position)

    def copy(self) -> Sequence:
        """An independent sequence in the same state."""
        return Sequence(self._graph, self._ops, self._cache.copy(), self._images)


def next_logits_together(sequences: Ids[Sequence], ids: TokenIds) -> Float32:
    """Feed one token to each of B sequences of one model, of any lengths, at once: logits float32 (B, V) after them.

    The same as feeding them one after the other, in less time: weights are read once. Errors: RequestError for another
    number of ids.
    """
    first = sequences[0]
    checked = token_ids(ids, first._graph.n_vocab)
    if len(checked) != len(sequences):
        raise RequestError(f"expected a token for each of {len(sequences)} sequences, found {len(checked)}")
    graph, ops, caches = first._graph, first._ops, [sequence._cache for sequence in sequences]
    if any(sequence._images for sequence in sequences):
        media = [sequence._images for sequence in sequences]
        hidden = cast("SeeingGraph", graph).hidden(checked[:, None], caches, media)
    else:
        hidden = graph.hidden(checked[:, None], caches)
    logits = graph.head(hidden)
    values: Float32 = ops.computed(logits, (array for cache in caches for array in cache.arrays()))[:, 0]
    return values
