"""`ForwardGraph`: what the class that a `GraphEntry` names must be. Graphs live in plugins; this is their contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from hf2q.backends.cache import Cache
    from hf2q.backends.media import ImageEmbeddings, Media
    from hf2q.backends.ops import Array, Ops
    from hf2q.backends.weights import Weights
    from hf2q.types import Float32


class ForwardGraph(Protocol):
    """A model's forward pass, in two halves so that a prefill pays for the logits of its last token only.

    The graph holds weights and no sequence: all that a sequence remembers is in its cache, so any number of them can
    take turns, or go through it together. Feeding tokens in one call, in several, or one by one gives the same result
    up to float rounding, and rows of a batch do not see each other.
    """

    def __init__(self, hparams: Any, weights: Weights, ops: Ops) -> None:
        """Take every weight it needs from `weights`. Errors: LoadError for hparams that it does not implement."""
        ...

    @property
    def n_vocab(self) -> int:
        """Number of logits V."""
        ...

    def new_cache(self) -> Cache:
        """An empty cache, for one sequence."""
        ...

    def hidden(self, ids: NDArray[np.int32], caches: Sequence[Cache]) -> Array:
        """Run the trunk over ids (B, T), which follow what the caches of the B rows hold, and advance these.

        The sequences may have different lengths; each gets T more tokens.
        Returns the final, normalised hidden states (B, T, C).
        """
        ...

    def head(self, hidden: Array) -> Array:
        """Logits (..., V) of final hidden states (..., C)."""
        ...


class SeeingGraph(ForwardGraph, Protocol):
    """A forward pass that takes images among its tokens. Its `GraphEntry` says so: ``images=True``."""

    @property
    def n_deepstack(self) -> int:
        """For how many of its first layers an image brings embeddings that are added to their outputs."""
        ...

    @property
    def whole_images(self) -> bool:
        """Whether all tokens of an image must go in with one call, because they see each other."""
        ...

    def hidden(self, ids: NDArray[np.int32], caches: Sequence[Cache], media: Media | None = None) -> Array:
        """As `ForwardGraph.hidden`; `media` has for each row the images of its sequence, also those elsewhere in it.

        Where an image is, the ids only hold its place. Errors: UsageError as `hf2q.backends.media.check_media`, and
        for a part of an image that must be whole.
        """
        ...


class DraftHead(Protocol):
    """A head that guesses the token after the next (MTP), cheaply: what it says is only ever a proposal.

    The class that a `GraphEntry` names as `draft`; its weights are loaded only when asked for. Like a graph it holds no
    sequence: what one remembers is in a cache of the head's own, which can be trimmed to any position.
    """

    def __init__(self, hparams: Any, weights: Weights, ops: Ops, trunk: Any) -> None:
        """Take its weights, and share those of the graph `trunk`.

        Errors: LoadError when the file has no such head, or one that it does not implement.
        """
        ...

    def new_cache(self) -> Cache:
        """An empty cache, for one sequence."""
        ...

    def hidden(self, states: Array, ids: NDArray[np.int32], caches: Sequence[Cache]) -> Array:
        """Final hidden states (B, T, C), from which `head` gives logits of the token after each of `ids`.

        states (B, T, C) are the trunk's final hidden states of the tokens before ids (B, T); the pairs follow those
        that the caches hold, and advance them. What comes out may stand for the next state, to guess further ahead.
        """
        ...

    def head(self, hidden: Array) -> Array:
        """Logits (..., V) of final hidden states (..., C)."""
        ...


class VisionGraph(Protocol):
    """A vision tower with the layers that lead into a text model. The class that a `ProjectorEntry` names.

    Images do not see each other, and there is nothing to continue.
    """

    def __init__(self, hparams: Any, weights: Weights, ops: Ops) -> None:
        """Take every weight it needs from `weights`. Errors: LoadError for hparams that it does not implement."""
        ...

    @property
    def n_deepstack(self) -> int:
        """Number of embeddings for layers of the text model that each image has besides its own."""
        ...

    def prepare(self, pixels: NDArray[np.uint8]) -> tuple[Float32, tuple[int, int]]:
        """An image (height, width, 3) of any size, RGB: resized, normalised and cut as the tower was trained.

        Returns patches float32 (P, pixels) in the tower's own order, and their grid (rows, columns).
        Errors: RequestError for an image that the family does not take.
        """
        ...

    def embed(self, patches: Float32, grid: tuple[int, int]) -> ImageEmbeddings:
        """Run the tower over the patches of one image."""
        ...


class EncoderGraph(Protocol):
    """An encoder's forward pass: whole texts go in, a vector for each of their tokens comes out.

    Every token sees the whole text, so there is nothing to continue and no cache. The class that a `GraphEntry` with
    ``task="embed"`` names.
    """

    def __init__(self, hparams: Any, weights: Weights, ops: Ops) -> None:
        """Take every weight it needs from `weights`. Errors: LoadError for hparams that it does not implement."""
        ...

    @property
    def n_vocab(self) -> int:
        """Number of tokens that it has embeddings for."""
        ...

    def hidden(self, ids: NDArray[np.int32], lengths: Sequence[int]) -> Array:
        """The final hidden states (B, T, C) of ids (B, T), of which row b holds a text in its first lengths[b] ids.

        lengths are 1 to T. What follows a text is padding: any ids of the vocabulary, which no text's token sees, and
        whose states mean nothing. Rows of a batch do not see each other.
        """
        ...
