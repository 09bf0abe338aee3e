"""A GGUF file to convert, or a set of shards: its keys, its tensors, and their rows, stored or decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hf2q.codec import QuantCodec, check_finite
from hf2q.errors import FormatError, SourceError
from hf2q.formats.files import Identity, changed, open_regular, read_unchanged
from hf2q.formats.gguf import GgufFile, GgufTensor
from hf2q.formats.gguf.layout import MAGIC
from hf2q.formats.gguf.shards import open_shards
from hf2q.types import Record, Shape, resolve

if TYPE_CHECKING:
    from hf2q.types import Bytes, Float32


class GgufSource(Record, frozen=True, kw_only=True, eq=False):
    """An opened model. `files` are its shards in order, `tensors` those of all shards, in file order."""

    files: tuple[GgufFile, ...]
    identities: Mapping[str, Identity]
    tensors: Mapping[str, tuple[GgufFile, GgufTensor]]

    @property
    def first(self) -> GgufFile:
        """The file that holds the metadata."""
        return self.files[0]

    def rows(self, name: str, codec: QuantCodec | None) -> GgufRows:
        """The data of a tensor; `codec` decodes it, None where nobody does."""
        file, tensor = self.tensors[name]
        return GgufRows(file.path, self.identities[file.path], tensor, codec)


def is_gguf(source: str) -> bool:
    """Whether `source` names a GGUF file: by its first bytes, or, for a file that is damaged, by its name."""
    try:
        path = Path(source).expanduser()
        if not source or not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC or path.suffix == ".gguf"
    except (OSError, ValueError, RuntimeError):  # said better by whoever opens it
        return False


@contextmanager
def open_gguf_source(source: str) -> Iterator[GgufSource]:
    """Open a file, and all shards when it is the first of several.

    Errors: what `open_shards` raises; SourceError for a file without tensors; FormatError for one without the arch
    and the number of blocks of a model (projectors, adapters, importance matrices).
    """
    files = open_shards(str(Path(source).expanduser()))
    try:
        _check_model(files)
        yield GgufSource(
            files=files,
            identities=MappingProxyType({file.path: _identity(file) for file in files}),
            tensors=MappingProxyType({t.name: (file, t) for file in files for t in file.tensors.values()}),
        )
    finally:
        for file in files:
            file.close()


def _identity(file: GgufFile) -> Identity:
    descriptor, size = open_regular(file.path)
    try:
        if size != file.size:
            raise changed(file.path)
        return Identity.of(descriptor)
    finally:
        os.close(descriptor)


def _check_model(files: tuple[GgufFile, ...]) -> None:
    first = files[0]
    if not any(file.tensors for file in files):
        raise SourceError(f"{first.path} holds no tensors", hint="give the file that holds the model's weights")
    key = f"{first.arch}.block_count"
    if key not in first.metadata:
        raise FormatError(
            f"{first.path}: there is no key {key!r}, so this is no language model",
            hint="projectors, adapters and importance matrices are not quantized",
        )


class GgufRows:
    """One tensor of a file; implements `hf2q.types.Rows`. Each read opens the file for itself. Thread-safe.

    Shape and dtype are those of the file, the dtype as ggml spells it.
    """

    def __init__(self, path: str, identity: Identity, tensor: GgufTensor, codec: QuantCodec | None) -> None:
        self._path, self._identity, self._tensor, self._codec = path, identity, tensor, codec
        if codec is not None:
            resolve(codec.decoder)  # imports and compilers run here, and not in a worker

    @property
    def shape(self) -> Shape:
        """As ggml sees it, without outer sizes of 1."""
        return stored_shape(self._tensor)

    @property
    def dtype(self) -> str:
        """The type that the file has it in."""
        return self._tensor.qtype

    def read(self, start: int, stop: int) -> Float32:
        """Rows `start` to `stop`, decoded: a new float32 array (stop - start, columns)."""
        if self._codec is None:
            raise SourceError(f"{self._path}: no plugin decodes {self.dtype}, the type of {self._tensor.name!r}")
        return self._codec.decode(self._bytes(start, stop), threads=1)

    def stored(self, start: int, stop: int) -> Bytes:
        """Rows `start` to `stop` as they are in the file: a new uint8 array (stop - start, bytes).

        Errors: EncodeError when they hold NaN or infinity, which would be passed on.
        """
        data = self._bytes(start, stop)
        if self._codec is not None:
            values = self._codec.decode(data, threads=1)
            check_finite(values, self.dtype, f"tensor {self._tensor.name!r} of {self._path}", start)
        return data

    def _bytes(self, start: int, stop: int) -> Bytes:
        size = self._tensor.row_bytes
        out = np.empty((stop - start, size), np.uint8)
        if out.size:
            read_unchanged(self._path, self._identity, out.data.cast("B"), self._tensor.offset + start * size)
        return out


def stored_shape(tensor: GgufTensor) -> Shape:
    """A tensor's shape without outer sizes of 1, which ggml does not count; that of a scalar is (1,)."""
    shape = tensor.shape or (1,)
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape
