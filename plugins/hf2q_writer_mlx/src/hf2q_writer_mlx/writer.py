"""Write an MLX directory from a plan. Implements `hf2q.types.FolderWriter`.

The files grow in a hidden folder beside the target, which gets the target's name when all of it is on disk. A
quantized tensor arrives group by group, codes, scale, bias, and goes to three places of its file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hf2q.errors import ContractError, WriteError
from hf2q.formats.folder import UnfinishedFolder
from hf2q.types import Plan, TensorPlan
from hf2q_writer_mlx.affine import SIZES
from hf2q_writer_mlx.codec import affine_codec, storage_codec
from hf2q_writer_mlx.shards import INDEX, LIMIT, Shard, Stored, index_of, shards_of

if TYPE_CHECKING:
    from hf2q.types import Bytes


class MlxWriter:
    """Writes the folder `path` that `plan` describes; see `hf2q.types.Writer` for the order of calls.

    An existing folder is replaced at `close`; whether it may be is the caller's decision. `limit` is the most bytes of
    tensors in a file. Errors: ContractError for a plan that no such folder can hold; WriteError for everything about
    the disk, for tensors out of order and for wrong sizes. After any of them nothing remains of the unfinished folder.
    """

    def __init__(self, path: str, plan: Plan, limit: int = LIMIT) -> None:
        self._path = path
        self._plan = plan
        _check(plan)
        self._shards = shards_of(plan, limit)
        self._places = {name: shard for shard in self._shards for name in shard.tensors}
        self._index = 0
        self._done = 0
        self._rest = b""
        self._shard: Shard | None = None
        self._descriptor: int | None = None
        self._finished = False
        self._folder: UnfinishedFolder | None = UnfinishedFolder(_target(path))
        try:
            self._make_files()
        except OSError as error:
            raise self._failed(error) from error
        except BaseException:
            self.abort()
            raise

    @staticmethod
    def file_names(plan: Plan) -> tuple[str, ...]:
        """Every file of the folder, weights first."""
        return (*(shard.file for shard in shards_of(plan)), INDEX, *(field.key for field in plan.metadata))

    def write(self, name: str, data: Bytes) -> None:
        """Append `data`, C-contiguous uint8 of any shape, to the tensor `name`.

        A tensor may come in several pieces; the next begins when it is complete.
        """
        tensor = self._current(name)
        view = memoryview(cast("Any", data))
        if view.format != "B" or not view.c_contiguous:
            raise self._refuse(f"tensor {name!r} gets {view.format!r} values, expected contiguous uint8")
        piece = view.cast("B") if view.nbytes else memoryview(b"")
        if self._done + len(piece) > tensor.nbytes:
            raise self._refuse(f"tensor {name!r} gets {self._done + len(piece)} bytes, expected {tensor.nbytes}")
        if not len(piece):
            return
        try:
            self._put(tensor, piece)
        except OSError as error:
            raise self._failed(error) from error
        self._done += len(piece)

    def close(self) -> None:
        """Check that every tensor is complete, flush to disk, and give the folder its name."""
        folder = self._open()
        for tensor in self._plan.tensors[self._index :]:
            if self._done < tensor.nbytes:
                raise self._refuse(f"tensor {tensor.name!r} has {self._done} bytes, expected {tensor.nbytes}")
            self._done = 0
        try:
            self._leave()
            for shard in self._shards:
                _flush(folder.path / shard.file)
            texts = {field.key: str(field.value) for field in self._plan.metadata}
            for name, text in {INDEX: index_of(self._plan, self._shards), **texts}.items():
                (folder.path / name).write_bytes(text.encode())
                _flush(folder.path / name)
        except OSError as error:
            raise self._failed(error) from error
        self._folder = None
        folder.publish()

    def abort(self) -> None:
        """Remove the unfinished folder; does nothing when there is none."""
        folder, self._folder = self._folder, None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if folder is not None:
            folder.remove()

    def _make_files(self) -> None:
        """Files of their final size, so that a disk without room for them is found now."""
        folder = self._open()
        for shard in self._shards:
            descriptor = os.open(folder.path / shard.file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(descriptor, 0, shard.size)
                else:
                    os.truncate(descriptor, shard.size)
                _write_at(descriptor, shard.header, 0)
            finally:
                os.close(descriptor)

    def _put(self, tensor: TensorPlan, piece: memoryview) -> None:
        shard = self._places[tensor.name]
        if shard is not self._shard:
            self._leave()
            self._descriptor = os.open(self._open().path / shard.file, os.O_RDWR)
            self._shard = shard
        assert self._descriptor is not None
        places = shard.tensors[tensor.name]
        codec = affine_codec(tensor.qtype)
        if codec is None:
            _write_at(self._descriptor, piece, places[0].begin + self._done)
            return
        data = self._rest + bytes(piece) if self._rest else piece
        first = (self._done - len(self._rest)) // codec.type_size
        whole = len(data) // codec.type_size * codec.type_size
        if whole:
            self._put_groups(memoryview(data)[:whole], codec.type_size, SIZES[codec.scales], first, places)
        self._rest = bytes(data[whole:])

    def _put_groups(self, data: memoryview, size: int, scale: int, first: int, places: tuple[Stored, ...]) -> None:
        """Whole groups, of which `first` is the number of the first, to the places of codes, scales and biases."""
        import numpy as np

        assert self._descriptor is not None
        groups = np.frombuffer(data, np.uint8).reshape(-1, size)
        ends = (0, size - 2 * scale, size - scale, size)
        for place, start, stop in zip(places, ends[:-1], ends[1:], strict=True):
            part = np.ascontiguousarray(groups[:, start:stop])
            _write_at(self._descriptor, memoryview(cast("Any", part)).cast("B"), place.begin + first * (stop - start))

    def _current(self, name: str) -> TensorPlan:
        """The tensor that `name` continues or begins. Empty tensors need no call of their own."""
        self._open()
        while self._index < len(self._plan.tensors):
            tensor = self._plan.tensors[self._index]
            if tensor.name == name:
                return tensor
            if self._done < tensor.nbytes:
                missing = tensor.nbytes - self._done
                raise self._refuse(f"data came for {name!r}, expected {missing} more bytes of {tensor.name!r}")
            self._index += 1
            self._done = 0
        raise self._refuse(f"data came for tensor {name!r}, but it is complete or not in the plan")

    def _open(self) -> UnfinishedFolder:
        if self._folder is None:
            raise WriteError(f"{self._path} is not being written any more: its writer was closed or has failed")
        return self._folder

    def _leave(self) -> None:
        """Done with the file at hand."""
        descriptor, self._descriptor, self._shard = self._descriptor, None, None
        if descriptor is not None:
            os.close(descriptor)

    def _refuse(self, message: str) -> WriteError:
        self.abort()
        return WriteError(f"{self._path}: {message}")

    def _failed(self, error: OSError) -> WriteError:
        folder = self._open()
        self.abort()
        return folder.failed(error)


def _check(plan: Plan) -> None:
    names = [*(shard.file for shard in shards_of(plan)), INDEX]
    for field in plan.metadata:
        if field.key in names or Path(field.key).name != field.key or not isinstance(field.value, str):
            raise ContractError(f"{field.key!r} is no text file of an MLX directory")
        names.append(field.key)
    for tensor in plan.tensors:
        codec = storage_codec(tensor.qtype)
        rows = tensor.parameters // tensor.shape[-1] if tensor.shape[-1] else 0
        if rows * codec.row_bytes(tensor.shape[-1]) != tensor.nbytes:
            raise ContractError(f"{tensor.name} has {tensor.nbytes} bytes in the plan, other than {tensor.qtype} gives")


def _target(path: str) -> Path:
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle
        raise WriteError(f"{path!r} cannot be written: {error}") from error


def _write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
