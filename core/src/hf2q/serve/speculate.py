"""`SpeculativeSequence`: a sequence that computes ahead, on tokens that a draft head guesses.

A decode step of a large model costs about as much for several tokens as for one. So together with the token that is to
be fed, a few guesses go through the model; as long as the caller's next tokens are the guessed ones, their logits are
there already. With the first that is not, what was computed after it is dropped.

Guesses never change an answer: whoever asks for logits gets the model's own, after exactly the tokens fed. That holds
for greedy and for random choices alike, up to the rounding by which a forward pass of several tokens differs from one
of a single token.

Rolling back: keys and values are cut; a recurrent state holds no history, so it is copied before guesses go through it,
and tokens after the copy that turned out right go through the model again together with the next ones (`_again`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hf2q.backends.cache import Cache, Checkpoint
from hf2q.backends.graph import DraftHead, ForwardGraph
from hf2q.backends.ops import Array, Ops
from hf2q.serve.sequence import Sequence, TokenIds, token_ids

if TYPE_CHECKING:
    from hf2q.types import Float32

DRAFTS = 3
"""Tokens guessed at once."""

MOST_AGAIN = 8
"""Tokens that wait to go through a recurrent model again; with more, they go without guesses, and are done with."""


class SpeculativeSequence:
    """One sequence of tokens, used like `hf2q.serve.sequence.Sequence`. Text only.

    drafts    tokens guessed at once;  limit  most tokens that the sequence may ever hold
    position  tokens fed so far, in the caller's eyes
    guessed, right  how many guesses went through the model, and how many of them the caller then fed
    """

    def __init__(
        self, graph: ForwardGraph, draft: DraftHead, ops: Ops, *, drafts: int = DRAFTS, limit: int | None = None
    ) -> None:
        self._graph, self._draft, self._ops = graph, draft, ops
        self._drafts, self._limit = drafts, limit
        self._cache, self._draft_cache = graph.new_cache(), draft.new_cache()
        self._ids: list[int] = []
        self._again: list[
            int
        ] = []  # those at the end of `_ids` that the cache does not hold, once `_settle` was called
        self._states: Array | None = None  # final states (1, T, C) from the draft cache's position on
        self._checkpoint: Checkpoint | None = None  # of the cache, before what was fed together with guesses
        self._ahead: list[tuple[int, Float32]] = []  # guesses not yet judged, each with the logits after it
        self._guessed_from = 0  # position of the first guess that went through the model last
        self.guessed = self.right = 0

    @property
    def position(self) -> int:
        """Number of tokens fed so far."""
        return len(self._ids)

    @property
    def cache(self) -> Cache:
        """What the model remembers; it may hold guesses at its end."""
        return self._cache

    def prefill(self, ids: TokenIds) -> None:
        """Feed tokens whose logits nobody needs."""
        new = self._taken(ids)
        self._show_draft(new)
        self._forward([*self._again, *new], [])
        self._ops.eval(*self._kept())

    def next_logits(self, ids: TokenIds) -> Float32:
        """Feed tokens; logits float32 (V,) for the token after them."""
        new = token_ids(ids, self._graph.n_vocab).tolist()
        if len(new) == 1 and self._ahead and self._ahead[0][0] == new[0]:
            self.right += 1
            self._ids += new
            return self._ahead.pop(0)[1]
        new = self._taken(ids)
        shown = self._show_draft(new)
        # the head's last output is about what follows `new` only if that is one token
        able = len(new) == 1 and len(self._again) < MOST_AGAIN
        guesses = self._guesses(shown) if able and shown is not None else []
        waiting = [*self._again, *new]
        hidden = self._forward(waiting, guesses)
        logits = self._graph.head(hidden[:, len(waiting) - 1 :])
        values: Float32 = self._ops.computed(logits, self._kept())[0]
        self._ahead = [(token, values[1 + index]) for index, token in enumerate(guesses)]
        first: Float32 = values[0]
        return first

    def cut(self, position: int) -> int:
        """Where to cut the tokens to feed: anywhere."""
        return position

    def plain(self) -> Sequence:
        """The same sequence without guesses, in the same state. It takes over: this one is used up."""
        self._settle()
        sequence = Sequence(self._graph, self._ops, self._cache)
        if self._again:
            sequence.prefill(self._again)
        return sequence

    def _taken(self, ids: TokenIds) -> list[int]:
        """Check new tokens, and bring the cache to where they follow it, but for `_again`."""
        new: list[int] = token_ids(ids, self._graph.n_vocab).tolist()
        self._settle()
        self._ids += new
        return new

    def _settle(self) -> None:
        """Drop what was computed after the first wrong guess."""
        if self._checkpoint is None:
            return
        if not self._ahead:  # all were right, and the cache holds nothing else
            self._again = []
        elif self._cache.can_trim(len(self._ids)):
            self._cache.trim(len(self._ids))
            self._again = []
        else:
            self._cache.roll_back(self._checkpoint)
            self._again += self._ids[self._guessed_from :]
        self._ahead, self._checkpoint = [], None

    def _show_draft(self, new: list[int]) -> Array | None:
        """Let the draft head see all states up to `new`, and the tokens after them; its last output (1, 1, C)."""
        first, end = self._draft_cache.position, len(self._ids) - len(new)
        if self._states is None or end == first:
            return None
        ids = np.array([self._ids[first + 1 : end + 1]], np.int32)
        shown = self._draft.hidden(self._states[:, : end - first], ids, [self._draft_cache])
        return shown[:, -1:]

    def _guesses(self, state: Array) -> list[int]:
        """What probably follows the last token, from the draft head's output at it; its cache stays as it is."""
        count = self._drafts if self._limit is None else min(self._drafts, self._limit - len(self._ids))
        position, found = self._draft_cache.position, list[int]()
        while len(found) < count:
            if found:
                state = self._draft.hidden(state, np.array([found[-1:]], np.int32), [self._draft_cache])
            found.append(int(self._ops.to_numpy(self._draft.head(state)).argmax()))
        self._draft_cache.trim(position)
        return found

    def _forward(self, waiting: list[int], guesses: list[int]) -> Array:
        """Run the model over the last tokens and the guesses; final states (1, T, C) of all of them."""
        self._checkpoint = self._cache.checkpoint() if guesses else None
        hidden = self._graph.hidden(np.array([[*waiting, *guesses]], np.int32), [self._cache])
        start = len(self._ids) - len(waiting)
        self._states = hidden[:, self._draft_cache.position - start :]
        self._again = waiting if guesses else []
        self._guessed_from = len(self._ids)
        self.guessed += len(guesses)
        return hidden

    def _kept(self) -> list[Array]:
        states = [] if self._states is None else [self._states]
        return [*states, *self._cache.arrays(), *self._draft_cache.arrays()]
