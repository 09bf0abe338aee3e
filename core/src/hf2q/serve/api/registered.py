"""The models that a server may serve: files named when it was started, and nothing a client can choose."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from hf2q.errors import Hf2qError, MissingFileError, UsageError, listing
from hf2q.formats.gguf import open_model
from hf2q.plugins import Plugins
from hf2q.types import Record, Task

PROJECTOR = "mmproj-"
"""What the name of a projector's file begins with, before the name of its model's, as ``hf2q convert`` writes them."""

_SHARD = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-\d{5}", re.DOTALL)
_ENDING = ".gguf"


class ModelFile(Record, frozen=True, kw_only=True):
    """A file that may be served.

    id             the name under which requests ask for it;  aliases  other names
    path           the file, the first of its shards;  mmproj  its projector
    chat_template  a file with a template to use instead of the model's own
    arch, task     from its header, "" and ``generate`` when that was not read
    nbytes         of the files, projector included: what it counts in the memory budget
    initial        load it when the server starts
    """

    id: str
    path: Path
    aliases: tuple[str, ...] = ()
    mmproj: Path | None = None
    chat_template: Path | None = None
    arch: str = ""
    task: Task = "generate"
    nbytes: int = 0
    initial: bool = False


def named_after(path: Path) -> str:
    """The name under which a model file is served: valid text, whatever the file is called."""
    stem = path.name.removesuffix(_ENDING) or path.name
    shard = _SHARD.fullmatch(stem)
    return _text(shard["stem"] if shard else stem)


def projector_of(path: Path) -> Path | None:
    """The projector that lies beside a model file under the name that ``hf2q convert --mmproj`` gives it."""
    for name in (path.name, named_after(path) + _ENDING):
        found = path.with_name(PROJECTOR + name)
        if found.is_file():
            return found
    return None


def read_header(path: Path, plugins: Plugins) -> tuple[str, Task, int]:
    """Architecture, task and bytes of a model file, from its header alone.

    Errors: SourceError, as `open_model`; UnknownNameError for a family that nothing here can run.
    """
    file = open_model(path)
    try:
        return file.arch, plugins.graph(file.arch).task, file.size
    finally:
        file.close()


class Found(Record, frozen=True, kw_only=True):
    """What a folder holds: models, and files that are none, with the reason."""

    models: tuple[ModelFile, ...]
    others: tuple[tuple[Path, str], ...]


def scan(folder: Path, plugins: Plugins) -> Found:
    """Every model below `folder`, named by its path in it without ``.gguf``. Headers are read, and nothing else.

    A projector (`PROJECTOR` and the name of a model's file) belongs to that model. Links to folders are not followed.
    Errors: MissingFileError when there is no such folder.
    """
    if not folder.is_dir():
        raise MissingFileError(f"there is no folder {folder}")
    models: list[ModelFile] = []
    others: list[tuple[Path, str]] = []
    bound: set[Path] = set()
    projectors: list[Path] = []
    for path in _files(folder):
        if path.name.startswith(PROJECTOR):
            projectors.append(path)
            continue
        shard = _SHARD.fullmatch(path.name.removesuffix(_ENDING))
        if shard and int(shard["index"]) != 1:
            continue  # belongs to the first
        try:
            arch, task, nbytes = read_header(path, plugins)
        except Hf2qError as error:
            others.append((path, error.message))
            continue
        mmproj = projector_of(path)
        if mmproj is not None:
            bound.add(mmproj)
            nbytes += mmproj.stat().st_size
        place = path.parent.relative_to(folder).as_posix()
        id = named_after(path) if place == "." else f"{_text(place)}/{named_after(path)}"
        models.append(ModelFile(id=id, path=path, mmproj=mmproj, arch=arch, task=task, nbytes=nbytes))
    others += [(path, "a projector whose model is not beside it") for path in projectors if path not in bound]
    return Found(models=tuple(models), others=tuple(others))


def _files(folder: Path) -> Iterable[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(place, name) for name in sorted(names) if name.endswith(_ENDING))


def merged(named: Sequence[ModelFile], found: Sequence[ModelFile]) -> tuple[ModelFile, ...]:
    """Files named one by one and those of a folder together; a file that is among both counts as named.

    Errors: UsageError for two files of one name.
    """
    same = {file.path.resolve() for file in named}
    files = [*named, *(file for file in found if file.path.resolve() not in same)]
    seen: dict[str, ModelFile] = {}
    for file in files:
        other = seen.setdefault(file.id, file)
        if other is not file:
            raise UsageError(
                f"{other.path} and {file.path} would both be served as {file.id!r}", hint="rename one of the files"
            )
    return tuple(files)


def with_aliases(files: Sequence[ModelFile], aliases: Mapping[str, str]) -> tuple[ModelFile, ...]:
    """The files with other names: `aliases` maps a new name to an id.

    Errors: UsageError for an id that there is not, and a name that is taken.
    """
    ids = {file.id for file in files}
    for alias, id in aliases.items():
        if id not in ids:
            raise UsageError(f"--alias {alias}={id}: no model {id!r}; there are: {listing(ids)}")
        if alias in ids:
            raise UsageError(f"--alias {alias}={id}: {alias!r} is the name of a model")
    others = {id: tuple(alias for alias, of in aliases.items() if of == id) for id in aliases.values()}
    return tuple(msgspec.structs.replace(file, aliases=others.get(file.id, ())) for file in files)


def bytes_of(path: Path, mmproj: Path | None = None) -> int:
    """Bytes of a model's files, by their names: all shards, and the projector. Errors: OSError."""
    shard = _SHARD.fullmatch(path.name.removesuffix(_ENDING))
    count = int(path.name.removesuffix(_ENDING)[-5:]) if shard else 1
    names = [f"{shard['stem']}-{n + 1:05d}-of-{count:05d}{_ENDING}" for n in range(count)] if shard else [path.name]
    files = [each for each in map(path.with_name, names) if each.is_file()]
    return sum(each.stat().st_size for each in ([*files, mmproj] if mmproj else files))


def _text(name: str) -> str:
    return name.encode("utf-8", "replace").decode("utf-8")
