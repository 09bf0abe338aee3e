"""Headers of weights that stay on the hub, as files that the readers of `hf2q.formats` can open.

A skeleton is a sparse file as large as the one on the hub: its header is there, the rest is a hole that takes no room.
It must not be asked for weights. Source of the layouts: `hf2q.formats.safetensors.header`, `hf2q.formats.gguf.reader`.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from hf2q.errors import Hf2qError, HubError
from hf2q.formats.gguf.cursor import IncompleteHeaderError
from hf2q.formats.gguf.reader import open_gguf
from hf2q.formats.safetensors.header import MAX_HEADER_BYTES
from hf2q.hub.cache import writing
from hf2q.hub.paths import check_selected
from hf2q.hub.ranges import read_range
from hf2q.hub.repository import Repository, expect_online
from hf2q.hub.transfer import AT_ONCE

_FIRST_SAFETENSORS = 256 << 10
_FIRST_GGUF = 1 << 20


@contextmanager
def checkpoint_skeleton(repository: Repository, folder: Path, shards: Sequence[str]) -> Iterator[Path]:
    """A folder like `folder`, which has the small files, with skeletons of `shards`; gone after the `with` statement.

    Errors: HubError, MissingFileError; WriteError when there is no place for it.
    """
    check_selected(shards, repository.name)
    with _temporary(repository, f"{repository.name}: ", folder.name) as made:
        with writing(made):
            for path in folder.rglob("*"):
                name = path.relative_to(folder).as_posix()
                if path.is_file() and name not in shards and not path.name.startswith("."):
                    (made / name).parent.mkdir(parents=True, exist_ok=True)
                    (made / name).symlink_to(path.resolve())
        with ThreadPoolExecutor(AT_ONCE, "hf2q-headers") as team:
            list(team.map(lambda name: _write_safetensors(repository, name, made / name), shards))
        yield made


@contextmanager
def gguf_skeleton(repository: Repository, path: str) -> Iterator[Path]:
    """A GGUF file by its header alone, with the other shards beside it when it is one of several.

    Errors: HubError, MissingFileError; FormatError for what is wrong in a header.
    """
    names = _shards(repository, path)
    check_selected(names, repository.name)
    with _temporary(repository, f"{repository.listing.canonical}:", "file") as folder:
        with ThreadPoolExecutor(AT_ONCE, "hf2q-headers") as team:
            list(team.map(lambda name: _write_gguf(repository, name, folder / name), names))
        yield folder / path


def _shards(repository: Repository, path: str) -> list[str]:
    """The file, and all others of its series that there are. Errors: MissingFileError when there is no such file."""
    repository.expected(path)
    match = re.fullmatch(r"(.*)-\d{5}-of-(\d{5}\.gguf)", path)
    if match is None:
        return [path]
    series = re.compile(rf"{re.escape(match[1])}-\d{{5}}-of-{re.escape(match[2])}")
    return sorted(name for name in repository.listing.files if series.fullmatch(name))


def _write_gguf(repository: Repository, name: str, target: Path) -> None:
    size, data = _beginning(repository, name, _FIRST_GGUF)
    here = len(data)
    _write(target, size, 0, data)
    while here < size:
        try:
            with open_gguf(target, here):
                return
        except IncompleteHeaderError:
            more = _part(repository, name, here, min(size, 2 * here))
            _write(target, size, here, more)
            here += len(more)


def _write_safetensors(repository: Repository, name: str, target: Path) -> None:
    size, data = _beginning(repository, name, _FIRST_SAFETENSORS)
    length = int.from_bytes(data[:8], "little")
    end = min(size, 8 + length)
    if len(data) < end and length <= MAX_HEADER_BYTES:
        data += _part(repository, name, len(data), end)
    _write(target, size, 0, data[: max(end, 64)])


def _beginning(repository: Repository, path: str, count: int) -> tuple[int, bytes]:
    """Size of a file and its first bytes. Errors: HubError when the hub does not say how large it is."""
    client = expect_online(repository, path)
    announced = repository.expected(path).size
    data, size = read_range(client, repository.file(path), 0, count)
    size = announced if size is None else size
    if size is None or (announced is not None and size != announced):
        raise HubError(f"{repository.name}: {path} has {size} bytes, the hub announced {announced}")
    return size, data


def _part(repository: Repository, path: str, start: int, stop: int) -> bytes:
    client = expect_online(repository, path)
    data, _ = read_range(client, repository.file(path), start, stop)
    if len(data) != stop - start:
        raise HubError(f"{repository.name}: {path} ends before byte {stop}")
    return data


def _write(path: Path, size: int, position: int, data: bytes) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if position else "wb") as file:
            file.truncate(size)
            file.seek(position)
            file.write(data)


@contextmanager
def _temporary(repository: Repository, spoken: str, name: str) -> Iterator[Path]:
    """A folder of that name for a while; errors speak of the repository where they would speak of the folder."""
    with tempfile.TemporaryDirectory(prefix="hf2q-") as outer:
        folder = Path(outer) / name
        folder.mkdir()
        try:
            yield folder
        except Hf2qError as error:
            error.message = error.message.replace(f"{folder}{os.sep}", spoken).replace(str(folder), repository.name)
            error.args = (error.message,)
            raise
