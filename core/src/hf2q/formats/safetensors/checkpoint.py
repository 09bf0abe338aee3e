"""A local checkpoint as one collection of tensors, whatever its files. Top of `hf2q.formats.safetensors`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from hf2q.errors import FormatError, TensorMismatchError, listing
from hf2q.formats.safetensors.header import Header, read_header
from hf2q.formats.safetensors.shards import INDEX, find_shards
from hf2q.types import Record, TensorInfo

if TYPE_CHECKING:
    from hf2q.formats.safetensors.rows import RawRows
    from hf2q.types import Rows


class CheckpointFile(Record, frozen=True, kw_only=True):
    """One file of a checkpoint: its path relative to the checkpoint, and its size in bytes."""

    name: str
    size: int


def open_checkpoint(directory: str | os.PathLike[str]) -> Checkpoint:
    """Find the files of a checkpoint and read their headers; no weight is read.

    Errors: MissingFileError for files that are not there; FormatError for a file that breaks the format, for an index
    and files that disagree, and for a tensor that two files hold. Each names file and tensor.
    """
    try:
        return _open(directory)
    except FormatError as error:
        if error.hint is None:
            error.hint = (
                "the checkpoint is damaged, or files of two are mixed: download it again, or save the model anew"
            )
        raise


def _open(directory: str | os.PathLike[str]) -> Checkpoint:
    folder = os.fspath(directory)
    shards = find_shards(folder)
    headers = {file: read_header(folder, file) for file in shards.files}
    tensors: dict[str, TensorInfo] = {}
    for header in headers.values():
        for name, info in header.tensors.items():
            if name in tensors:
                raise FormatError(f"{folder}: tensor {name!r} is in both {tensors[name].file} and {info.file}")
            tensors[name] = info
    if shards.weight_map is not None:
        _check_index(folder, shards.weight_map, tensors)
    return Checkpoint(folder, tensors, headers)


class Checkpoint:
    """The tensors of a checkpoint. Holds nothing open; reading is thread-safe.

    directory   as opened
    tensors     by name, in the order in which llama.cpp's converter visits them: files by name, and within a file
                tensors by name (llama.cpp gguf-py/gguf/utility.py, `SafetensorsLocal`)
    files       in the same order
    metadata    the ``__metadata__`` of each file, by file name: ``format`` is ``mlx`` for files that MLX wrote
    """

    def __init__(self, directory: str, tensors: dict[str, TensorInfo], headers: dict[str, Header]) -> None:
        """Use `open_checkpoint`."""
        self.directory = directory
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)
        self.files = tuple(CheckpointFile(name=file, size=header.identity.size) for file, header in headers.items())
        self.metadata: Mapping[str, Mapping[str, str]] = MappingProxyType(
            {file: MappingProxyType(header.metadata) for file, header in headers.items()}
        )
        self._headers = headers

    def rows(self, name: str) -> Rows:
        """The data of a tensor, to be read a few rows at a time.

        Errors: TensorMismatchError when there is no such tensor, or its dtype has no plain float32 values (integers,
        8-bit and smaller floats).
        """
        from hf2q.formats.safetensors.rows import StoredRows

        info = self._info(name)
        return StoredRows(self.directory, info, self._headers[info.file].identity)

    def raw(self, name: str) -> RawRows:
        """The bytes of a tensor, for dtypes that mean nothing alone. Errors: TensorMismatchError."""
        from hf2q.formats.safetensors.rows import RawRows

        info = self._info(name)
        return RawRows(self.directory, info, self._headers[info.file].identity)

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise TensorMismatchError(f"{self.directory}: there is no tensor {name!r} among its {len(self.tensors)}")
        return info


def _check_index(folder: str, weight_map: Mapping[str, str], tensors: Mapping[str, TensorInfo]) -> None:
    index = Path(folder, INDEX)
    missing = [name for name in weight_map if name not in tensors]
    if missing:
        raise FormatError(
            f"{index} names {len(missing)} tensors that its files do not hold: {listing(missing)}",
            hint="download the checkpoint again",
        )
    extra = [name for name in tensors if name not in weight_map]
    if extra:
        files = listing({tensors[name].file for name in extra})
        raise FormatError(f"{index} does not name {len(extra)} tensors of {files}: {listing(extra)}")
    moved = [name for name, file in weight_map.items() if tensors[name].file != file]
    if moved:
        name = min(moved)
        raise FormatError(
            f"{index} says that tensor {name!r} is in {weight_map[name]}, but it is in {tensors[name].file} "
            f"({len(moved)} such tensors)"
        )
