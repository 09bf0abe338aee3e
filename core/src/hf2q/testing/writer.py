"""`WriterContract`: what every output format must keep: whole files or none, and every byte where the plan says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest

from hf2q.errors import WriteError
from hf2q.formats.ggml_types import row_bytes
from hf2q.formats.gguf.layout import plan_offsets
from hf2q.testing.contract import Contract, not_checked
from hf2q.types import MetadataField, Plan, Shape, TensorPlan, ValueType, Writer, resolve

if TYPE_CHECKING:
    from hf2q.types import Bytes

TENSORS: tuple[tuple[str, Shape, str], ...] = (
    ("token_embd.weight", (5, 64), "Q8_0"),
    ("output_norm.weight", (3,), "F32"),
    ("blk.0.attn_q.weight", (4, 32), "Q4_0"),
    ("blk.0.attn_k.weight", (7, 5), "F16"),
    ("blk.0.ffn_exps.weight", (3, 2, 32), "F32"),
    ("blk.0.scale.weight", (1,), "BF16"),
    ("output.weight", (2, 256), "Q6_K"),
)


class WriterContract(Contract):
    """Subclass it, set `plugin` and `name`; a format other than GGUF also gives `read_back`.

    One that writes folders gives `content` and `occupy` as well, and `plan` where it has types of its own.
    """

    name: ClassVar[str] = ""

    @classmethod
    def read_back(cls, path: Path) -> Mapping[str, tuple[Shape, str, bytes]]:
        """What an independent reader finds: name -> shape in numpy order, qtype, data. For GGUF gguf-py reads."""
        if cls.name != "gguf":
            not_checked("no independent reader; define `read_back`")
        import gguf

        reader = gguf.GGUFReader(path)
        return {
            tensor.name: (
                tuple(int(size) for size in reversed(tensor.shape)),
                str(tensor.tensor_type.name),
                tensor.data.tobytes(),
            )
            for tensor in reader.tensors
        }

    @classmethod
    def plan(cls) -> Plan:
        """Tensors of several types and odd sizes, metadata of every kind."""
        sizes = [prod(shape[:-1]) * row_bytes(qtype, shape[-1]) for _, shape, qtype in TENSORS]
        offsets = plan_offsets(sizes)
        tensors = tuple(
            TensorPlan(
                name=name, shape=shape, qtype=qtype, via="F32", reason="test", nbytes=nbytes, offset=offset, inputs=()
            )
            for (name, shape, qtype), nbytes, offset in zip(TENSORS, sizes, offsets, strict=True)
        )
        metadata = (
            MetadataField.string("general.architecture", "test"),
            MetadataField.string("general.name", "naïve 東京 🗼"),
            MetadataField.u32("general.file_type", 7),
            MetadataField.f32("test.eps", 1e-6),
            MetadataField.boolean("test.flag", True),
            MetadataField.array("test.kinds", ValueType.STRING, ["a", "", "ü"]),
            MetadataField.array("test.sections", ValueType.INT32, [1, -2, 3]),
        )
        return Plan(arch="test", recipe="test", via="f32", metadata=metadata, tensors=tensors)

    @classmethod
    def data(cls, plan: Plan) -> dict[str, Bytes]:
        """Bytes for every tensor. No number is hidden in them: writers copy."""
        random = np.random.RandomState(1)
        return {tensor.name: random.randint(0, 256, tensor.nbytes).astype(np.uint8) for tensor in plan.tensors}

    @classmethod
    def open(cls, path: Path, plan: Plan) -> Writer:
        """The writer under test."""
        made: Writer = resolve(cls.plugins().writer(cls.name).writer)(str(path), plan)
        return made

    @classmethod
    def write(cls, path: Path, *, step: int | None = None) -> dict[str, Bytes]:
        """Write the whole plan, tensors in pieces of `step` bytes or whole; returns what went in."""
        plan = cls.plan()
        data = cls.data(plan)
        writer = cls.open(path, plan)
        for tensor in plan.tensors:
            for at in range(0, tensor.nbytes, step or tensor.nbytes):
                writer.write(tensor.name, data[tensor.name][at : at + (step or tensor.nbytes)])
        assert not path.exists(), "the file has its final name before close"
        writer.close()
        return data

    @classmethod
    def content(cls, path: Path) -> bytes | Mapping[str, bytes]:
        """Every byte of an output."""
        return path.read_bytes()

    @classmethod
    def occupy(cls, path: Path) -> None:
        """Put an older output there, with another content than any that is written."""
        path.write_bytes(b"old")

    def output(self, folder: Path) -> Path:
        """Where to write: a name with the entry's suffix."""
        suffix = self.plugins().writer(self.name).suffix
        assert suffix.startswith("."), f"the suffix {suffix!r} has no dot"
        return folder / f"model{suffix}"

    # ------------------------------------------------------------------------------------------------ what is there

    def test_an_independent_reader_finds_everything(self, tmp_path: Path) -> None:
        """Names, order, shapes, types and bytes."""
        path = self.output(tmp_path)
        data = self.write(path)
        found = self.read_back(path)
        assert list(found) == [tensor.name for tensor in self.plan().tensors]
        for tensor in self.plan().tensors:
            shape, qtype, stored = found[tensor.name]
            assert shape == tensor.shape, tensor.name
            assert qtype == tensor.qtype, tensor.name
            assert stored == data[tensor.name].tobytes(), f"{tensor.name}: other bytes than were written"

    def test_pieces_do_not_change_the_file(self, tmp_path: Path) -> None:
        """A tensor may come in any pieces."""
        whole, pieces = self.output(tmp_path), self.output(tmp_path).with_stem("pieces")
        self.write(whole)
        self.write(pieces, step=37)
        assert self.content(whole) == self.content(pieces)

    def test_writing_twice_gives_the_same_bytes(self, tmp_path: Path) -> None:
        """No time, no chance, no path inside."""
        one, two = self.output(tmp_path), self.output(tmp_path).with_stem("two")
        self.write(one)
        self.write(two)
        assert self.content(one) == self.content(two)

    def test_nothing_else_is_left(self, tmp_path: Path) -> None:
        """One file, and no temporary one."""
        path = self.output(tmp_path)
        self.write(path)
        assert list(tmp_path.iterdir()) == [path]

    # ------------------------------------------------------------------------------------------------ what is refused

    def refused(self, tmp_path: Path, pieces: Sequence[tuple[str, Bytes]]) -> None:
        """Check that a whole file made of `pieces` is refused somewhere, and that nothing of it is left."""
        path = self.output(tmp_path)
        writer = self.open(path, self.plan())
        try:
            with pytest.raises(WriteError):
                self.finish(writer, pieces)
        finally:
            writer.abort()
        assert not path.exists(), "a refused file has its final name"
        assert list(tmp_path.iterdir()) == [], "something of a refused file is left"

    @staticmethod
    def finish(writer: Writer, pieces: Sequence[tuple[str, Bytes]]) -> None:
        """Write all pieces and close."""
        for name, piece in pieces:
            writer.write(name, piece)
        writer.close()

    def pieces(self) -> list[tuple[str, Bytes]]:
        """The whole plan as it should be written."""
        plan = self.plan()
        data = self.data(plan)
        return [(tensor.name, data[tensor.name]) for tensor in plan.tensors]

    @pytest.mark.parametrize("place", [0, 5])
    def test_another_order_is_refused(self, place: int, tmp_path: Path) -> None:
        """Tensors come in the plan's order."""
        pieces = self.pieces()
        pieces[place], pieces[place + 1] = pieces[place + 1], pieces[place]
        self.refused(tmp_path, pieces)

    @pytest.mark.parametrize("place", [0, 7])
    def test_a_tensor_that_is_not_planned_is_refused(self, place: int, tmp_path: Path) -> None:
        """So is a name nobody knows."""
        pieces = self.pieces()
        pieces.insert(place, ("blk.9.nobody.weight", np.zeros(4, np.uint8)))
        self.refused(tmp_path, pieces)

    @pytest.mark.parametrize("place", [0, 3, 6])
    def test_too_many_bytes_are_refused(self, place: int, tmp_path: Path) -> None:
        """A tensor has the bytes that the plan says, not more."""
        pieces = self.pieces()
        name, piece = pieces[place]
        pieces[place] = name, np.append(piece, np.uint8(0))
        self.refused(tmp_path, pieces)

    @pytest.mark.parametrize("place", [0, 3, 6])
    def test_too_few_bytes_are_refused(self, place: int, tmp_path: Path) -> None:
        """Nor fewer."""
        pieces = self.pieces()
        name, piece = pieces[place]
        pieces[place] = name, piece[:-1]
        self.refused(tmp_path, pieces)

    @pytest.mark.parametrize("place", [0, 6])
    def test_a_tensor_twice_is_refused(self, place: int, tmp_path: Path) -> None:
        """A complete tensor gets no more, at once or later."""
        pieces = self.pieces()
        for again in ([*pieces[: place + 1], *pieces[place:]], [*pieces, pieces[place]]):
            self.refused(tmp_path, again)

    @pytest.mark.parametrize("place", [0, 3, 6])
    def test_a_missing_tensor_is_refused(self, place: int, tmp_path: Path) -> None:
        """Closing needs everything to be there."""
        pieces = self.pieces()
        del pieces[place]
        self.refused(tmp_path, pieces)

    def test_nothing_at_all_is_refused(self, tmp_path: Path) -> None:
        """A header alone is no file."""
        self.refused(tmp_path, [])

    # --------------------------------------------------------------------------------------------------- interruption

    def test_an_interrupted_run_leaves_nothing(self, tmp_path: Path) -> None:
        """`abort` in the middle of a tensor removes all of it, also when called twice."""
        path = self.output(tmp_path)
        plan = self.plan()
        writer = self.open(path, plan)
        first = plan.tensors[0]
        writer.write(first.name, self.data(plan)[first.name][: first.nbytes // 2])
        assert not path.exists()
        writer.abort()
        writer.abort()
        assert list(tmp_path.iterdir()) == []

    def test_abort_after_close_keeps_the_file(self, tmp_path: Path) -> None:
        """`finally: writer.abort()` is safe."""
        path = self.output(tmp_path)
        plan = self.plan()
        data = self.data(plan)
        writer = self.open(path, plan)
        for tensor in plan.tensors:
            writer.write(tensor.name, data[tensor.name])
        writer.close()
        content = self.content(path)
        writer.abort()
        assert self.content(path) == content

    def test_an_existing_file_stays_until_the_new_one_is_whole(self, tmp_path: Path) -> None:
        """Replaced at close in one step, kept when the run is aborted."""
        path = self.output(tmp_path)
        self.occupy(path)
        old = self.content(path)
        writer = self.open(path, self.plan())
        assert self.content(path) == old
        writer.abort()
        assert self.content(path) == old
        writer = self.open(path, self.plan())
        for name, piece in self.pieces():
            writer.write(name, piece)
        assert self.content(path) == old
        writer.close()
        assert self.content(path) != old

    def test_a_folder_that_is_not_there_is_a_clear_error(self, tmp_path: Path) -> None:
        """WriteError naming it, not an OSError."""
        with pytest.raises(WriteError, match="gone"):
            self.open(self.output(tmp_path / "gone"), self.plan())
