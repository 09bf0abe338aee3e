"""`EncoderContract`: what every encoder must keep.

As with `hf2q.testing.graph`, the generic checks find wrong masks and positions; a wrong epsilon, activation or rope
layout only shows against states recorded with another implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hf2q.backends.graph import EncoderGraph
from hf2q.testing.contract import not_checked
from hf2q.testing.forward import ForwardContract, Running
from hf2q.types import HParams

if TYPE_CHECKING:
    from hf2q.types import Float32

LENGTHS = (1, 17, 40, 6)
"""Of the texts of a batch; the longest is as long as a suite's texts get."""


class Encoder(Running):
    """A graph on its backend."""

    graph: EncoderGraph

    def values(self, ids: Any) -> Float32:
        """The final hidden states, every row a text without padding."""
        array = np.atleast_2d(np.asarray(ids, np.int32))
        return self.hidden(array, [array.shape[1]] * len(array))

    def hidden(self, ids: Any, lengths: Sequence[int]) -> Float32:
        """ids (B, T) with texts of these lengths -> states (B, T, C)."""
        found: Float32 = self.ops.to_numpy(self.graph.hidden(np.asarray(ids, np.int32), lengths))
        return found


class EncoderContract(ForwardContract):
    """Subclass it, set `plugin`, `arch`, `config` and `reference`, and pytest runs the checks on every backend here.

    config     a context of 40 tokens or more
    reference  an .npz with ``ids`` int (N, T) and ``hidden`` float32 (N, T, C), the final hidden states of N texts
               without padding, recorded with another implementation from the weights of `TinyCheckpoint`
               (hf2q-arch-bert has the program in its PROVENANCE.md)
    tolerance  largest difference of states, relative to the largest number in them
    backends   which to run on; one that cannot run here is "not checked"
    reach      how many tokens it takes until every tensor has an effect
    idle       patterns of tensors whose numbers can have no effect, each with the reason
    """

    @pytest.fixture
    def model(self, backend: str, arrays: dict[str, Float32]) -> Encoder:
        """The graph with all its tensors."""
        return self.build(backend, arrays)

    def build(self, backend: str, arrays: Mapping[str, Float32], hparams: HParams | None = None) -> Encoder:
        """The graph on a backend."""
        return Encoder(*self.made(backend, arrays, hparams))

    # ------------------------------------------------------------------------------------------------------- the laws

    def test_states_have_the_right_form(self, model: Encoder) -> None:
        """float32 (B, T, C), finite, and one row for each position."""
        states = model.values(self.ids(2, 9))
        assert states.dtype == np.float32
        assert states.ndim == 3
        assert states.shape[:2] == (2, 9)
        assert model.graph.n_vocab == self.checkpoint().hparams.symbols["n_vocab"]
        assert np.isfinite(states).all()

    def test_texts_of_a_batch_are_independent(self, model: Encoder) -> None:
        """Each text of a batch, of whatever length, gets what it gets alone."""
        ids = self.ids(len(LENGTHS), max(LENGTHS), seed=1)
        batch = model.hidden(ids, LENGTHS)
        for row, length in enumerate(LENGTHS):
            alone = model.values(ids[row, :length])
            self.close(batch[row : row + 1, :length], alone, f"a text of {length} tokens in a batch")

    def test_padding_is_seen_by_nothing(self, model: Encoder) -> None:
        """Neither what ids it is, nor how much there is of it, not even none."""
        text = self.ids(1, 11, seed=2)
        alone = model.values(text)
        for more, seed in ((1, 3), (20, 3), (20, 4)):
            padded = np.concatenate([text, self.ids(1, more, seed=seed)], 1)
            self.close(model.hidden(padded, [11])[:, :11], alone, f"a text before {more} tokens of padding")

    def test_every_token_sees_every_other(self, model: Encoder) -> None:
        """Another token anywhere changes the state of every token, before it and after it."""
        ids = self.ids(1, 8, seed=5)
        states = model.values(ids)[0]
        for place in range(ids.shape[1]):
            other = ids.copy()
            other[0, place] = (other[0, place] + 1) % model.graph.n_vocab
            change = np.abs(model.values(other)[0] - states).max(axis=-1)
            blind = np.flatnonzero(change <= 1e-6 * np.abs(states).max()).tolist()
            assert not blind, f"tokens {blind} do not see token {place}"

    def test_the_order_of_tokens_matters(self, model: Encoder) -> None:
        """Two tokens that change places change the state of a third."""
        ids = self.ids(1, 8, seed=6)
        swapped = ids.copy()
        swapped[0, [2, 5]] = ids[0, [5, 2]]
        first, other = model.values(ids)[0, 0], model.values(swapped)[0, 0]
        assert np.abs(other - first).max() > 1e-6 * np.abs(first).max(), "order has no effect"

    # ----------------------------------------------------------------------------------------------------- the numbers

    def test_states_equal_the_recorded_reference(self, model: Encoder) -> None:
        """What another implementation computes from the same weights."""
        if self.reference is None:
            not_checked("no recorded states; set `reference`: a wrong epsilon or activation would not be noticed")
        with np.load(self.reference) as recorded:
            ids, states = recorded["ids"], recorded["hidden"]
        assert ids.shape[-1] >= 16, "record at least 16 tokens: positions must have time to go wrong"
        for row, expected in zip(np.atleast_2d(ids), states.reshape(-1, *states.shape[-2:]), strict=True):
            self.close(model.values(row)[0], expected, "against the recorded reference")
