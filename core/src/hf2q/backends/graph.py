"""`ForwardGraph`: what the class that a `GraphEntry` names must be. Graphs live in plugins; this is their contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hf2q.backends.cache import Cache
    from hf2q.backends.ops import Array, Ops
    from hf2q.backends.weights import Weights


class ForwardGraph(Protocol):
    """A model's forward pass, in two halves so that a prefill pays for the logits of its last token only.

    The graph holds weights and no sequence: all that a sequence remembers is in its cache, so any number of them can
    take turns. Feeding tokens in one call, in several, or one by one gives the same result up to float rounding, and
    rows of a batch do not see each other.
    """

    def __init__(self, hparams: Any, weights: Weights, ops: Ops) -> None:
        """Take every weight it needs from `weights`. Errors: LoadError for hparams that it does not implement."""
        ...

    @property
    def n_vocab(self) -> int:
        """Number of logits V."""
        ...

    def new_cache(self) -> Cache:
        """An empty cache; the batch size is that of the first call."""
        ...

    def hidden(self, ids: NDArray[np.int32], cache: Cache) -> Array:
        """Run the trunk over ids (B, T), which follow what `cache` holds, and advance the cache.

        Returns the final, normalised hidden states (B, T, C).
        """
        ...

    def head(self, hidden: Array) -> Array:
        """Logits (..., V) of final hidden states (..., C)."""
        ...
