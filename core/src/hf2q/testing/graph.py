"""`GraphContract`: what every forward pass must keep.

The generic checks find wrong masks, positions and caches; a wrong epsilon or rope layout only shows against logits
recorded with another implementation, so those belong to every graph.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pytest

from hf2q.backends.graph import ForwardGraph
from hf2q.backends.ops import Ops
from hf2q.backends.weights import ArraySource, Weights
from hf2q.errors import LoadError
from hf2q.formats.gguf import open_gguf
from hf2q.testing.arch import FamilyContract
from hf2q.testing.contract import normal, not_checked
from hf2q.types import HParams, resolve

if TYPE_CHECKING:
    from hf2q.backends.cache import Cache
    from hf2q.types import Bytes, Float32


class Model(NamedTuple):
    """A graph on its backend, and the names of the tensors that it took."""

    graph: ForwardGraph
    ops: Ops
    taken: set[str]

    def logits(self, ids: Any, cache: Cache | None = None) -> Float32:
        """ids (T,) or (B, T), after what `cache` holds -> logits (B, T, V)."""
        array = np.atleast_2d(np.asarray(ids, np.int32))
        cache = self.graph.new_cache() if cache is None else cache
        logits = self.graph.head(self.graph.hidden(array, cache))
        self.ops.eval(logits, *cache.arrays())
        found: Float32 = self.ops.to_numpy(logits)
        return found


class WatchedSource(ArraySource):
    """Arrays that remember which of them were asked for."""

    def __init__(self, arrays: Mapping[str, Float32]) -> None:
        super().__init__(arrays)
        self.taken: set[str] = set()

    def rows(self, name: str) -> Bytes:
        """The data of a tensor."""
        self.taken.add(name)
        return super().rows(name)


class GraphContract(FamilyContract):
    """Subclass it, set `plugin`, `arch`, `config` and `reference`, and pytest runs the checks on every backend here.

    reference  an .npz with ``ids`` int (N, T) and ``logits`` float32 (N, T, V), recorded with another implementation
               from the weights of `TinyCheckpoint` (hf2q-example-arch has the program in its PROVENANCE.md)
    tolerance  largest difference of logits, relative to the largest logit
    backends   which to run on; one that cannot run here is "not checked"
    """

    reference: ClassVar[Path | str | None] = None
    tolerance: ClassVar[float] = 1e-4
    backends: ClassVar[Collection[str]] = ("reference", "mlx")

    @pytest.fixture(params=["reference", "mlx"])
    def backend(self, request: pytest.FixtureRequest) -> str:
        """Each backend in turn."""
        name: str = request.param
        if name not in self.backends:
            not_checked(f"{name} is not among the backends of this suite")
        reason = resolve(self.plugins().backend(name).available)()
        if reason is not None:
            not_checked(f"the backend {name} cannot run here: {reason}")
        return name

    @pytest.fixture
    def arrays(self, tmp_path: Path) -> dict[str, Float32]:
        """The tiny model's tensors."""
        return self.tensors(tmp_path)

    def tensors(self, folder: Path) -> dict[str, Float32]:
        """The tiny model's tensors as a GGUF file has them, converted in `folder`."""
        from hf2q.convert import convert

        source = self.checkpoint().write(folder / "checkpoint")
        convert(source, "f32", folder / "model.gguf", mtp=self.mtp, plugins=self.plugins())
        with open_gguf(folder / "model.gguf") as file:
            return {
                name: file.rows(name).view(np.float32).reshape(tensor.shape).copy()
                for name, tensor in file.tensors.items()
            }

    @pytest.fixture
    def model(self, backend: str, arrays: dict[str, Float32]) -> Model:
        """The graph with all its tensors."""
        return self.build(backend, arrays)

    def build(self, backend: str, arrays: Mapping[str, Float32], hparams: HParams | None = None) -> Model:
        """The graph on a backend."""
        plugins = self.plugins()
        ops: Ops = resolve(plugins.backend(backend).backend)(threads=1)
        source = WatchedSource(arrays)
        make = resolve(plugins.graph(self.arch).graph)
        graph: ForwardGraph = make(hparams or self.checkpoint().hparams, Weights(source, plugins.codec, ops), ops)
        return Model(graph, ops, source.taken)

    def ids(self, *shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Random token ids."""
        n_vocab = self.checkpoint().hparams.symbols["n_vocab"]
        return np.random.RandomState(seed).randint(0, n_vocab, shape).astype(np.int32)

    def close(self, found: Float32, expected: Float32, what: str) -> None:
        """Check that logits are equal up to rounding."""
        assert found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
        off = float(np.abs(found - expected).max() / np.abs(expected).max())
        assert off <= self.tolerance, f"{what}: logits differ by {off:.2e} of the largest"

    # ---------------------------------------------------------------------------------------------------- the tensors

    def test_every_tensor_is_used(self, model: Model) -> None:
        """The graph takes every tensor of the catalog but those of MTP blocks."""
        checkpoint = self.checkpoint()
        kinds = checkpoint.hparams.layer_kinds
        trunk = {s.name for s in checkpoint.specs if s.block is None or not kinds[s.block].startswith("mtp")}
        unused = trunk - model.taken
        assert not unused, f"the graph does not use {sorted(unused)}"

    def test_a_missing_tensor_is_named(self, arrays: dict[str, Float32]) -> None:
        """LoadError with the tensor's name, whichever it is."""
        taken = self.build("reference", arrays).taken
        optional = {spec.name for spec in self.checkpoint().specs if spec.optional}
        for name in taken - optional:
            rest = {other: array for other, array in arrays.items() if other != name}
            with pytest.raises(LoadError, match=re.escape(name)):
                self.build("reference", rest)

    def test_an_optional_tensor_can_be_left_out(self, arrays: dict[str, Float32]) -> None:
        """What the catalog calls optional the graph can do without: else a missing one goes unnoticed until now."""
        optional = {spec.name for spec in self.checkpoint().specs if spec.optional}
        for name in self.build("reference", arrays).taken & optional:
            rest = {other: array for other, array in arrays.items() if other != name}
            assert np.isfinite(self.build("reference", rest).logits(self.ids(1, 3))).all(), f"without {name}"

    def test_every_tensor_matters(self, arrays: dict[str, Float32]) -> None:
        """Other numbers in any tensor give other logits."""
        ids = self.ids(1, 12)
        model = self.build("reference", arrays)
        before = model.logits(ids)
        for name in sorted(model.taken):
            # not by one factor: a norm may follow that takes it out again
            noise: Float32 = (1 + normal(16, *arrays[name].shape) / 2).astype(np.float32)
            after = self.build("reference", {**arrays, name: arrays[name] * noise}).logits(ids)
            assert np.abs(after - before).max() > 1e-6 * np.abs(before).max(), f"{name} has no effect"

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

    def test_rows_of_a_batch_are_independent(self, model: Model) -> None:
        """Each row of a batch gets what it gets alone, prefilled and decoded."""
        ids = self.ids(3, 14, seed=3)
        cache = model.graph.new_cache()
        batch = np.concatenate([model.logits(ids[:, :10], cache), model.logits(ids[:, 10:], cache)], 1)
        for row in range(len(ids)):
            self.close(batch[row : row + 1], model.logits(ids[row]), f"row {row} of a batch")

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
        """Cut back and filled again, it gives what a fresh one gives."""
        ids, other = self.ids(1, 20, seed=9), self.ids(1, 20, seed=10)
        for keep in (13, 1, 0) if model.graph.new_cache().trimmable else (0,):
            cache = model.graph.new_cache()
            model.logits(ids, cache)
            cache.trim(keep)
            assert cache.position == keep
            expected = model.logits(np.concatenate([ids[:, :keep], other], 1))[:, keep:]
            self.close(model.logits(other, cache), expected, f"after cutting back to {keep}")

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
        hidden = model.graph.hidden(ids, model.graph.new_cache())
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

    def test_backends_agree(self, arrays: dict[str, Float32], backend: str) -> None:
        """Each gives the logits of the plain numpy one."""
        ids = self.ids(2, 40, seed=15)
        expected = self.build("reference", arrays).logits(ids)
        self.close(self.build(backend, arrays).logits(ids), expected, backend)
