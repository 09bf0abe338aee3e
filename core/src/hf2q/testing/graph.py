"""`GraphContract`: what every forward pass must keep.

The generic checks find wrong masks, positions and caches; a wrong epsilon or rope layout only shows against logits
recorded with another implementation, so those belong to every graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hf2q.backends.cache import AT_ONCE
from hf2q.backends.graph import ForwardGraph
from hf2q.errors import UsageError
from hf2q.testing.contract import not_checked
from hf2q.testing.forward import ForwardContract, Running
from hf2q.types import HParams, resolve

if TYPE_CHECKING:
    from hf2q.backends.cache import Cache
    from hf2q.types import Float32


class Model(Running):
    """A graph on its backend."""

    graph: ForwardGraph

    def values(self, ids: Any) -> Float32:
        """The logits, each row by itself from its beginning."""
        return self.logits(ids)

    def logits(self, ids: Any, caches: Cache | Sequence[Cache] | None = None) -> Float32:
        """ids (T,) or (B, T), after what the caches of the rows hold -> logits (B, T, V)."""
        array = np.atleast_2d(np.asarray(ids, np.int32))
        if caches is None:
            caches = self.caches(len(array))
        elif not isinstance(caches, Sequence):
            caches = [caches]
        logits = self.graph.head(self.graph.hidden(array, caches))
        self.ops.eval(logits, *(array for cache in caches for array in cache.arrays()))
        found: Float32 = self.ops.to_numpy(logits)
        return found

    def caches(self, count: int) -> list[Cache]:
        """Empty ones."""
        return [self.graph.new_cache() for _ in range(count)]


class GraphContract(ForwardContract):
    """Subclass it, set `plugin`, `arch`, `config` and `reference`, and pytest runs the checks on every backend here.

    reference  an .npz with ``ids`` int (N, T) and ``logits`` float32 (N, T, V), recorded with another implementation
               from the weights of `TinyCheckpoint` (hf2q-example-arch has the program in its PROVENANCE.md)
    tolerance  largest difference of logits, relative to the largest logit
    backends   which to run on; one that cannot run here is "not checked"
    reach      how many tokens it takes until every tensor has an effect
    idle       patterns of tensors whose numbers can have no effect, each with the reason
    """

    @pytest.fixture
    def model(self, backend: str, arrays: dict[str, Float32]) -> Model:
        """The graph with all its tensors."""
        return self.build(backend, arrays)

    def build(self, backend: str, arrays: Mapping[str, Float32], hparams: HParams | None = None) -> Model:
        """The graph on a backend."""
        return Model(*self.made(backend, arrays, hparams))

    # ------------------------------------------------------------------------------------------------------- the laws

    def test_logits_have_the_right_form(self, model: Model) -> None:
        """float32 (B, T, V), finite, and one row for each position."""
        logits = model.logits(self.ids(2, 9))
        assert logits.dtype == np.float32
        assert logits.shape == (2, 9, model.graph.n_vocab)
        assert model.graph.n_vocab == self.checkpoint().hparams.symbols["n_vocab"]
        assert np.isfinite(logits).all()

    def test_token_by_token_equals_one_prefill(self, model: Model) -> None:
        """Decoding continues where a prefill of any length left off."""
        ids = self.ids(1, 24)
        whole = model.logits(ids)
        for start in (0, 1, 17):
            cache = model.graph.new_cache()
            steps = [model.logits(ids[:, :start], cache)] if start else []
            steps += [model.logits(ids[:, t : t + 1], cache) for t in range(start, ids.shape[1])]
            assert cache.position == ids.shape[1], f"the cache counts {cache.position} tokens of {ids.shape[1]}"
            self.close(np.concatenate(steps, 1), whole, f"token by token after {start}")

    def test_chunked_prefill_equals_one_prefill(self, model: Model) -> None:
        """However the prompt is cut."""
        ids = self.ids(1, 67, seed=1)
        whole = model.logits(ids)
        for sizes in ([64, 3], [3, 64], [1, 16, 17, 33], [66, 1]):
            cache, at, parts = model.graph.new_cache(), 0, []
            for size in sizes:
                parts.append(model.logits(ids[:, at : at + size], cache))
                at += size
            self.close(np.concatenate(parts, 1), whole, f"prefill in chunks of {sizes}")

    def test_a_long_sequence_outgrows_its_buffers(self, model: Model) -> None:
        """Beyond the first room of a cache, where buffers are moved."""
        ids = self.ids(1, 300, seed=2)
        cache = model.graph.new_cache()
        parts = [model.logits(ids[:, a:b], cache) for a, b in ((0, 250), (250, 255), (255, 258), (258, 300))]
        self.close(np.concatenate(parts, 1), model.logits(ids), "a sequence of 300 tokens")

    def test_caches_take_what_is_estimated(self, model: Model) -> None:
        """`GraphEntry.cache_bytes`, by which loading and serving know whether caches fit into memory."""
        entry = self.plugins().graph(self.arch)
        if not entry.cache_bytes:
            not_checked(f"the graph of {self.arch} does not say what its caches take (GraphEntry.cache_bytes)")
        estimate = resolve(entry.cache_bytes)
        cache, held = model.graph.new_cache(), 0
        for tokens in (1, 300, 700):
            while held < tokens:  # fed as the engine feeds a prompt
                count = min(AT_ONCE, tokens - held)
                model.logits(self.ids(1, count, seed=held), cache)
                held += count
            taken = sum(array.nbytes for array in cache.arrays())
            told = estimate(self.checkpoint().hparams, tokens)
            # buffers grow by half, so that they are not copied for each token
            assert taken / 1.6 <= told <= taken * 1.6, f"{tokens} tokens take {taken} bytes, cache_bytes says {told}"

    def test_rows_of_a_batch_are_independent(self, model: Model) -> None:
        """Each row of a batch gets what it gets alone, prefilled and decoded."""
        ids = self.ids(3, 14, seed=3)
        caches = model.caches(3)
        batch = np.concatenate([model.logits(ids[:, :10], caches), model.logits(ids[:, 10:], caches)], 1)
        for row in range(len(ids)):
            self.close(batch[row : row + 1], model.logits(ids[row]), f"row {row} of a batch")

    def test_rows_of_different_lengths_go_together(self, model: Model) -> None:
        """Sequences that are at different positions are decoded in one call."""
        ids = self.ids(4, 26, seed=16)
        caches, starts = model.caches(4), (1, 19, 7, 0)
        for row, start in enumerate(starts):
            if start:
                model.logits(ids[row, :start], caches[row])
        steps = []
        for t in range(7):
            together = np.array([[ids[row, start + t]] for row, start in enumerate(starts)], np.int32)
            steps.append(model.logits(together, caches))
        for row, start in enumerate(starts):
            alone = model.logits(ids[row, : start + 7])[:, start:]
            self.close(np.concatenate([step[row : row + 1] for step in steps], 1), alone, f"row {row}, from {start}")
            assert caches[row].position == start + 7

    def test_later_tokens_do_not_change_earlier_logits(self, model: Model) -> None:
        """The graph is causal."""
        ids = self.ids(1, 16, seed=4)
        other = ids.copy()
        other[:, 9:] = self.ids(1, 7, seed=5)
        self.close(model.logits(other)[:, :9], model.logits(ids)[:, :9], "the tokens before a change")

    def test_every_earlier_token_matters(self, model: Model) -> None:
        """Another token anywhere, and in another order, changes the last logits."""
        ids = self.ids(1, 8, seed=6)
        last = model.logits(ids)[:, -1]
        for place in range(ids.shape[1]):
            other = ids.copy()
            other[0, place] = (other[0, place] + 1) % model.graph.n_vocab
            assert np.abs(model.logits(other)[:, -1] - last).max() > 1e-6 * np.abs(last).max(), f"token {place}"
        swapped = ids.copy()
        swapped[0, [2, 5]] = ids[0, [5, 2]]
        assert np.abs(model.logits(swapped)[:, -1] - last).max() > 1e-6 * np.abs(last).max(), "order has no effect"

    def test_sequences_on_one_graph_do_not_meet(self, model: Model) -> None:
        """Taking turns gives what each gets alone: a graph remembers nothing itself."""
        one, two = self.ids(1, 12, seed=7), self.ids(1, 12, seed=8)
        caches = model.graph.new_cache(), model.graph.new_cache()
        parts: tuple[list[Float32], list[Float32]] = ([], [])
        for start in range(0, 12, 4):
            for ids, cache, found in zip((one, two), caches, parts, strict=True):
                found.append(model.logits(ids[:, start : start + 4], cache))
        for ids, found in zip((one, two), parts, strict=True):
            self.close(np.concatenate(found, 1), model.logits(ids), "a sequence that takes turns")

    # ------------------------------------------------------------------------------------------------------- the cache

    def test_a_trimmed_cache_is_as_fresh(self, model: Model) -> None:
        """Cut back wherever it says that it can be, and filled again, it gives what a fresh one gives."""
        ids, other = self.ids(1, 20, seed=9), self.ids(1, 20, seed=10)
        for keep in (19, 13, 1, 0):
            cache = model.graph.new_cache()
            model.logits(ids, cache)
            if not cache.can_trim(keep):
                assert keep, "every cache can be emptied"
                with pytest.raises(UsageError):
                    cache.trim(keep)
                continue
            cache.trim(keep)
            assert cache.position == keep
            expected = model.logits(np.concatenate([ids[:, :keep], other], 1))[:, keep:]
            self.close(model.logits(other, cache), expected, f"after cutting back to {keep}")

    def test_a_restored_cache_continues_as_the_saved_one(self, model: Model) -> None:
        """Saved to plain arrays and restored into a fresh one."""
        ids = self.ids(1, 33, seed=17)
        cache, other = model.graph.new_cache(), model.graph.new_cache()
        model.logits(ids[:, :21], cache)
        saved = cache.save()
        assert all(isinstance(array, np.ndarray) for array in saved.values())
        other.restore(saved)
        assert other.position == 21
        expected = model.logits(ids)[:, 21:]
        self.close(model.logits(ids[:, 21:], other), expected, "the restored cache")
        self.close(model.logits(ids[:, 21:], cache), expected, "the saved cache")

    def test_a_copied_cache_is_independent(self, model: Model) -> None:
        """Original and copy go different ways."""
        ids, one, two = self.ids(1, 10, seed=11), self.ids(1, 6, seed=12), self.ids(1, 6, seed=13)
        cache = model.graph.new_cache()
        model.logits(ids, cache)
        copy = cache.copy()
        for branch, continued in ((cache, one), (copy, two), (copy, one), (cache, two)):
            before = branch.position
            assert before in (10, 16)
            model.logits(continued, branch)
        self.close(
            model.logits(ids[:, :4], cache),
            model.logits(np.concatenate([ids, one, two, ids[:, :4]], 1))[:, -4:],
            "the original",
        )
        self.close(
            model.logits(ids[:, :4], copy),
            model.logits(np.concatenate([ids, two, one, ids[:, :4]], 1))[:, -4:],
            "the copy",
        )

    def test_the_head_may_be_asked_about_one_position(self, model: Model) -> None:
        """Logits of the last position alone are those it has among all."""
        ids = self.ids(1, 11, seed=14)
        hidden = model.graph.hidden(ids, model.caches(1))
        last = model.ops.to_numpy(model.graph.head(hidden[:, -1:]))
        self.close(last, model.logits(ids)[:, -1:], "the last position")

    # ----------------------------------------------------------------------------------------------------- the numbers

    def test_logits_equal_the_recorded_reference(self, model: Model) -> None:
        """What another implementation computes from the same weights."""
        if self.reference is None:
            not_checked("no recorded logits; set `reference`: a wrong epsilon or rope layout would not be noticed")
        with np.load(self.reference) as recorded:
            ids, logits = recorded["ids"], recorded["logits"]
        assert ids.shape[-1] >= 16, "record at least 16 tokens: positions must have time to go wrong"
        for row, expected in zip(np.atleast_2d(ids), logits.reshape(-1, *logits.shape[-2:]), strict=True):
            self.close(model.logits(row)[0], expected, "against the recorded reference")
