"""A model as one collection of tensors, in one file or several. Top of `hf2q.formats.gguf`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

from hf2q.errors import FormatError
from hf2q.formats.gguf.metadata import Metadata
from hf2q.formats.gguf.reader import GgufFile
from hf2q.formats.gguf.shards import open_shards
from hf2q.formats.gguf.table import GgufTensor

if TYPE_CHECKING:
    from hf2q.types import Bytes


def open_model(path: str | os.PathLike[str]) -> GgufModel:
    """Open a file, and the other shards when it is the first of several. Errors: as `open_shards`."""
    return GgufModel(open_shards(os.fspath(path)))


class GgufModel:
    """An open model. Reading is thread-safe.

    path      of the file, of the first when there are several;  files  all, in order;  size  their bytes together
    metadata  of the model: the first file's
    tensors   of all files, in file order, by name; offsets count within the file that holds the tensor
    """

    def __init__(self, files: tuple[GgufFile, ...]) -> None:
        """Use `open_model`."""
        self.files = files
        self.path = files[0].path
        self.size = sum(file.size for file in files)
        self._file_of = {name: file for file in files for name in file.tensors}
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(
            {name: tensor for file in files for name, tensor in file.tensors.items()}
        )

    @property
    def metadata(self) -> Metadata:
        """The keys and values."""
        return self.files[0].metadata

    @property
    def arch(self) -> str:
        """The text of ``general.architecture``. Errors: FormatError."""
        return self.files[0].arch

    def rows(self, name: str) -> Bytes:
        """The data of a tensor: a read-only view, uint8 (rows, bytes per row), of the mapped file; nothing is copied.

        Errors: FormatError when there is no such tensor.
        """
        file = self._file_of.get(name)
        if file is None:
            raise FormatError(f"{self.path}: there is no tensor {name!r} among its {len(self.tensors)}")
        return file.rows(name)

    @property
    def mapped(self) -> bool:
        """Whether pages of what `rows` gives may be let go of, to be read again when somebody looks."""
        return all(file.mapped for file in self.files)

    def release(self, name: str, first: int = 0, last: int | None = None) -> None:
        """Let go of the memory that reading rows of a tensor took. They can be read again."""
        self._file_of[name].release(name, first, last)

    def release_all(self) -> None:
        """Let go of the memory that reading headers and rows took, of all files."""
        for file in self.files:
            file.release_all()

    def close(self) -> None:
        """Unmap the files, now or, while views of them are in use, when the last of these is gone."""
        for file in self.files:
            file.close()

    def __enter__(self) -> GgufModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
