"""Models in several files: how the files are named, found, and written so that they appear together.

Each shard is a GGUF file of its own. The first holds the metadata of the model; all say which of how many they are.
Source: llama.cpp, src/llama.cpp (`llama_split_path`, `llama_split_prefix`), src/llama-model-loader.cpp
(`llama_model_loader`), tools/gguf-split/gguf-split.cpp (`split_strategy`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hf2q.errors import FormatError, MissingFileError, SourceError, WriteError
from hf2q.formats.gguf.reader import GgufFile, open_gguf
from hf2q.types import MetadataField, Plan, ValueType

if TYPE_CHECKING:
    from hf2q.formats.gguf.writer import GgufWriter
    from hf2q.types import Bytes

SPLIT_NO = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"
SPLIT_KEYS = (SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS)
MAX_SHARDS = 65535
"""`split.count` is a u16; file names have room for five digits."""

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


def shard_path(stem: str, index: int, count: int) -> str:
    """The file name of shard `index` (from 0) of `count`; `stem` may hold a folder."""
    return f"{stem}-{index + 1:05d}-of-{count:05d}.gguf"


def split_fields(index: int, count: int, n_tensors: int) -> tuple[MetadataField, ...]:
    """What a shard says of itself; `n_tensors` counts those of all shards."""
    return (
        MetadataField(key=SPLIT_NO, type=ValueType.UINT16, value=index),
        MetadataField(key=SPLIT_COUNT, type=ValueType.UINT16, value=count),
        MetadataField.i32(SPLIT_TENSORS, n_tensors),
    )


def open_shards(path: str) -> tuple[GgufFile, ...]:
    """The file `path` and, when it says that it is the first of several, the others, which lie beside it.

    Errors: SourceError for a shard that is not the first; MissingFileError for absent shards; FormatError for files
    that do not belong together. What `open_gguf` raises.
    """
    files: list[GgufFile] = []
    try:
        files.append(open_gguf(path))
        count = _number(files[0], SPLIT_COUNT) if SPLIT_COUNT in files[0].metadata else 1
        if count > 1:
            stem = _stem(files[0], count)
            for index in range(1, count):
                other = shard_path(stem, index, count)
                files.append(_other(other, index, count))
            _check(files)
    except BaseException:
        for file in files:
            file.close()
        raise
    return tuple(files)


def _stem(first: GgufFile, count: int) -> str:
    found = _NAME.fullmatch(first.path)
    index = _number(first, SPLIT_NO)
    if index != 0:
        hint = f"give {shard_path(found[1], 0, count)}" if found else "give the first one"
        raise SourceError(f"{first.path} is shard {index + 1} of {count}; a model is opened by its first", hint=hint)
    if count > MAX_SHARDS or found is None or (int(found[2]), int(found[3])) != (1, count):
        raise FormatError(
            f"{first.path} says that it is the first of {count} shards, but its name does not",
            hint=f"name the files NAME-00001-of-{count:05d}.gguf and so on, as they were written",
        )
    return found[1]


def _other(path: str, index: int, count: int) -> GgufFile:
    try:
        file = open_gguf(path)
    except MissingFileError as error:
        raise MissingFileError(
            f"{error.message}; it is shard {index + 1} of {count}", hint=error.hint or "download all shards"
        ) from None
    try:
        own = (_number(file, SPLIT_NO), _number(file, SPLIT_COUNT))
        if own != (index, count):
            raise FormatError(f"{path} says that it is shard {own[0] + 1} of {own[1]}, expected {index + 1} of {count}")
    except BaseException:
        file.close()
        raise
    return file


def _check(files: Sequence[GgufFile]) -> None:
    seen: dict[str, str] = {}
    for file in files:
        for name in file.tensors:
            if name in seen:
                raise FormatError(f"tensor {name!r} is in both {seen[name]} and {file.path}")
            seen[name] = file.path
    claimed = _number(files[0], SPLIT_TENSORS) if SPLIT_TENSORS in files[0].metadata else len(seen)
    if claimed != len(seen):
        raise FormatError(
            f"{files[0].path}: {SPLIT_TENSORS} is {claimed}, but the {len(files)} shards hold {len(seen)}"
        )


def _number(file: GgufFile, key: str) -> int:
    value = file.metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FormatError(f"{file.path}: {key} is {value!r}, expected a number")
    return value


class ShardedWriter:
    """Writes the files `paths` that `plans` describe, one after the other; see `hf2q.types.Writer`.

    The files get their names at `close`, when all of them are complete and on disk: the first shard last, so that
    nobody who looks for a model finds half of it. Should a disk refuse one of the names, those given before stay.
    """

    def __init__(self, paths: Sequence[str], plans: Sequence[Plan]) -> None:
        self._waiting = list(zip(paths, plans, strict=True))
        self._shard_of = {tensor.name: index for index, plan in enumerate(plans) for tensor in plan.tensors}
        self._writers: list[GgufWriter] = []
        self._hashing = False
        self._next()

    def start_hash(self) -> None:
        """Hash the files while they are written, for `hashes`; to be called before the first `write`."""
        self._hashing = True
        self._writers[-1].start_hash()

    def hashes(self) -> dict[str, str]:
        """SHA-256 of the finished files by path, in hexadecimal digits; nothing unless `start_hash` was called."""
        return {path: digest for writer in self._writers for path, digest in writer.hashes().items()}

    def write(self, name: str, data: Bytes) -> None:
        """Append `data` to the tensor `name`, which is the current one or the next. Errors: WriteError."""
        try:
            wanted = self._shard_of.get(name, 0)
            while wanted >= len(self._writers):
                self._writers[-1].finish()
                self._next()
            self._writers[-1].write(name, data)
        except BaseException:
            self.abort()
            raise

    def close(self) -> None:
        """Check and flush what is left, and give every file its name."""
        try:
            self._writers[-1].finish()
            while self._waiting:
                self._next()
                self._writers[-1].finish()
            for writer in reversed(self._writers):
                writer.publish()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Remove what has no name yet. Safe at any time, also after `close`."""
        for writer in self._writers:
            with contextlib.suppress(WriteError):
                writer.abort()

    def _next(self) -> None:
        from hf2q.formats.gguf.writer import GgufWriter  # whoever reads needs none of it

        path, plan = self._waiting.pop(0)
        self._writers.append(GgufWriter(path, plan))
        if self._hashing:
            self._writers[-1].start_hash()
