"""`ForwardContract`: what the suites of decoders and encoders share: a tiny model on its backends, and its tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from hf2q.backends.ops import Ops
from hf2q.backends.weights import ArraySource, Weights
from hf2q.errors import LoadError
from hf2q.formats.gguf import open_gguf
from hf2q.testing.contract import normal, not_checked
from hf2q.testing.family import FamilyContract
from hf2q.types import HParams, resolve

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32


_ARRAYS = pytest.StashKey[dict[str, Any]]()


class Running:
    """A graph on its backend, and the names of the tensors that it took."""

    def __init__(self, graph: Any, ops: Ops, taken: set[str]) -> None:
        self.graph, self.ops, self.taken = graph, ops, taken

    def values(self, ids: Any) -> Float32:
        """What the graph computes of ids (T,) or (B, T): float32 (B, T, ...)."""
        raise NotImplementedError


class WatchedSource(ArraySource):
    """Arrays that remember which of them were asked for."""

    def __init__(self, arrays: Mapping[str, Float32]) -> None:
        super().__init__(arrays)
        self.taken: set[str] = set()

    def rows(self, name: str) -> Bytes:
        """The data of a tensor."""
        self.taken.add(name)
        return super().rows(name)


class ForwardContract(FamilyContract):
    """Tensors taken and needed, and backends that agree, whatever the graph computes. The suites say what to set."""

    reference: ClassVar[Path | str | None] = None
    tolerance: ClassVar[float] = 1e-4
    backends: ClassVar[Collection[str]] = ("reference", "mlx")
    reach: ClassVar[int] = 12
    idle: ClassVar[Mapping[str, str]] = MappingProxyType({})

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
    def arrays(self, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Float32]:
        """The tiny model's tensors, made once for all checks of the suite, which change none of them."""
        suite = request.node.getparent(pytest.Class)
        if _ARRAYS not in suite.stash:
            suite.stash[_ARRAYS] = self.tensors(tmp_path)
        made: dict[str, Float32] = suite.stash[_ARRAYS]
        return made

    def tensors(self, folder: Path) -> dict[str, Float32]:
        """The tiny model's tensors as a GGUF file has them, converted in `folder`."""
        from hf2q.convert import convert

        source = self.checkpoint().write(folder / "checkpoint")
        convert(source, "f32", folder / "model.gguf", mtp=self.mtp, plugins=self.plugins())
        with open_gguf(folder / "model.gguf") as file:
            return {
                name: self.plugins().codec(tensor.qtype).decode(np.array(file.rows(name))).reshape(tensor.shape)
                for name, tensor in file.tensors.items()
            }

    def build(self, backend: str, arrays: Mapping[str, Float32], hparams: HParams | None = None) -> Running:
        """The graph on a backend."""
        raise NotImplementedError

    def made(self, backend: str, arrays: Mapping[str, Float32], hparams: HParams | None) -> tuple[Any, Ops, set[str]]:
        """The graph, its backend, and the set of the tensors that it took."""
        plugins = self.plugins()
        ops: Ops = resolve(plugins.backend(backend).backend)(threads=1)
        source = WatchedSource(arrays)
        make = resolve(plugins.graph(self.arch).graph)
        graph = make(hparams or self.checkpoint().hparams, Weights(source, plugins.codec, ops), ops)
        return graph, ops, source.taken

    def ids(self, *shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Random token ids."""
        n_vocab = self.checkpoint().hparams.symbols["n_vocab"]
        return np.random.RandomState(seed).randint(0, n_vocab, shape).astype(np.int32)

    def close(self, found: Float32, expected: Float32, what: str) -> None:
        """Check that two results are equal up to rounding."""
        assert found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
        off = float(np.abs(found - expected).max() / np.abs(expected).max())
        assert off <= self.tolerance, f"{what}: the numbers differ by {off:.2e} of the largest"

    # ---------------------------------------------------------------------------------------------------- the tensors

    def test_every_tensor_is_used(self, model: Running) -> None:
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
            assert np.isfinite(self.build("reference", rest).values(self.ids(1, 3))).all(), f"without {name}"

    def test_every_tensor_matters(self, arrays: dict[str, Float32]) -> None:
        """Other numbers in any tensor give another result."""
        ids = self.ids(1, self.reach)
        model = self.build("reference", arrays)
        before = model.values(ids)
        tables = {spec.name for spec in self.checkpoint().specs if spec.rule.stored_as == "I32"}
        for name in sorted(model.taken):
            # not by one factor: a norm may follow that takes it out again
            noise: Float32 = (1 + normal(16, *arrays[name].shape) / 2).astype(np.float32)
            if noise.size == 1:
                noise = -noise  # a single number is one factor; its sign outlasts a norm
            other = arrays[name][::-1] if name in tables else arrays[name] * noise
            after = self.build("reference", {**arrays, name: other}).values(ids)
            if any(re.fullmatch(pattern, name) for pattern in self.idle):
                self.close(after, before, f"{name}, said to be idle")
            else:
                assert np.abs(after - before).max() > 1e-6 * np.abs(before).max(), f"{name} has no effect"

    def test_backends_agree(self, arrays: dict[str, Float32], backend: str) -> None:
        """Each gives the result of the plain numpy one."""
        ids = self.ids(2, 40, seed=15)
        expected = self.build("reference", arrays).values(ids)
        self.close(self.build(backend, arrays).values(ids), expected, backend)
