"""`Embedder`: texts to vectors. What `Model.embed` and ``hf2q embed`` share.

Texts of about the same length go through the model together. That changes no vector but in rounding: a row of a batch
does not see its neighbours, and padding is seen by nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Several
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hf2q.backends.graph import EncoderGraph, ForwardGraph
from hf2q.backends.ops import Array, Ops
from hf2q.errors import ContextLengthError, Hf2qError, RequestError
from hf2q.serve import pooling as pooled
from hf2q.serve.sequence import TokenIds, token_ids

if TYPE_CHECKING:
    from hf2q.formats.tokenizer import Tokenizer
    from hf2q.types import Float32

BATCH_TOKENS = 2048
"""Most tokens, padding among them, that go through the model together; a longer text goes alone."""


SIMILAR = 0.75
"""Share of the longest text's length that the others of its batch have at least: more would be work on padding."""

SHORT = 16
"""Texts of up to so many tokens go together whatever their lengths: what one call costs weighs more."""


class CausalEncoder:
    """A decoder seen as an encoder. Its tokens see none that follow, so no padding after a text either."""

    def __init__(self, graph: ForwardGraph) -> None:
        self._graph = graph

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return self._graph.n_vocab

    def hidden(self, ids: NDArray[np.int32], lengths: Several[int]) -> Array:
        """As `EncoderGraph.hidden`."""
        return self._graph.hidden(ids, [self._graph.new_cache() for _ in lengths])


class Embedder:
    """Turns texts into vectors. Thread-safe.

    pooling  how the vectors of tokens become one: what the file states, None or ``none`` when it does not say
    """

    def __init__(
        self,
        encoder: EncoderGraph,
        ops: Ops,
        tokenizer: Tokenizer,
        *,
        context_length: int,
        pooling: str | None,
        pooling_key: str,
    ) -> None:
        """`pooling_key` is where the file states the pooling, for messages."""
        self._encoder, self._ops, self._tokenizer = encoder, ops, tokenizer
        self._context_length = context_length
        self.pooling = pooling
        self._key = pooling_key

    def chosen(self, pooling: str | None) -> str:
        """The pooling that `vectors` would use. Errors: UsageError when there is none."""
        return pooled.choose(pooling, self.pooling, self._key)

    def tokens(self, text: str, *, truncate: bool = False) -> list[int]:
        """Token ids of a text, special tokens around it as the file wants them; those spelled out in it are read.

        A text that the context does not hold is refused, or with `truncate` cut at its end, before a final token that
        the file wants there. Errors: ContextLengthError with both numbers; RequestError for a text of no tokens.
        """
        tokenizer, limit = self._tokenizer, self._context_length
        ids = tokenizer.encode(text)
        if not ids:
            raise RequestError("the text has no tokens, and the model adds none", param="input")
        if len(ids) <= limit:
            return ids
        if not truncate:
            raise ContextLengthError(
                f"a text of {len(ids)} tokens does not fit the model's context of {limit}: {text[:40]!r}…",
                hint="split it, or embed its beginning alone with truncate (--truncate)",
                param="input",
                code="context_length_exceeded",
            )
        end = [tokenizer.eos_id] if tokenizer.add_eos and tokenizer.eos_id is not None else []
        return ids[: limit - len(end)] + end

    def vectors(self, tokens: Several[TokenIds], *, pooling: str | None = None, normalize: bool = True) -> Float32:
        """One vector for each of N texts, given as token ids: float32 (N, C), of length 1 with `normalize`.

        Errors: UsageError without a pooling; RequestError for ids outside the vocabulary, ContextLengthError for too
        many; Hf2qError when the model's states are not numbers.
        """
        pool = pooled.POOLINGS[self.chosen(pooling)]
        found = {index: pool(states) for index, states in self._states([self.checked(ids) for ids in tokens])}
        if not found:
            raise RequestError("there are no texts to embed", param="input")
        vectors = np.stack([found[index] for index in range(len(found))])
        return pooled.unit(vectors) if normalize else vectors

    def states(self, ids: TokenIds) -> Float32:
        """The final hidden states of one text, given as token ids: float32 (T, C). Errors: as `vectors`."""
        return next(states for _, states in self._states([self.checked(ids)]))

    def _states(self, rows: Several[NDArray[np.int32]]) -> Iterator[tuple[int, Float32]]:
        """Index and states (T, C) of each text, in any order, so that not all of them have to be kept."""
        for batch in _batches([len(ids) for ids in rows]):
            lengths = [len(rows[index]) for index in batch]
            padded = np.zeros((len(batch), max(lengths)), np.int32)
            for row, index in enumerate(batch):
                padded[row, : lengths[row]] = rows[index]
            states: Float32 = self._ops.to_numpy(self._encoder.hidden(padded, lengths))
            for row, index in enumerate(batch):
                own = states[row, : lengths[row]]
                if not np.isfinite(own).all():
                    raise Hf2qError(
                        "the model's hidden states are not finite numbers",
                        hint="the model file is damaged, or its numbers overflow: convert or download it again",
                    )
                yield index, own

    def checked(self, ids: TokenIds) -> NDArray[np.int32]:
        """Token ids as `vectors` takes them. Errors: RequestError, ContextLengthError, as `vectors`."""
        checked = token_ids(ids, self._encoder.n_vocab)
        if len(checked) > self._context_length:
            raise ContextLengthError(
                f"{len(checked)} tokens do not fit the model's context of {self._context_length}",
                param="input",
                code="context_length_exceeded",
            )
        return checked


def _batches(lengths: Several[int]) -> Iterator[list[int]]:
    """Indices of texts that go together, from the longest down: of similar length, so that little is padding."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    while order:
        longest = lengths[order[0]]
        most = max(1, BATCH_TOKENS // longest)
        batch = [index for index in order[:most] if longest <= SHORT or lengths[index] >= SIMILAR * longest]
        yield batch
        order = order[len(batch) :]
