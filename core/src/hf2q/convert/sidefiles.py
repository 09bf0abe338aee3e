"""Files beside config.json that say how a model computes. A family names those it reads in `ArchEntry.side_files`.

Each is put, parsed, into the mapping that `HParams.from_config` gets, under its own file name; one that does not exist
is left out. The names below are all there are:

``modules.json``  what sentence-transformers runs one after the other: a list of objects with ``type`` (a class name),
                  ``path`` (a folder, "" for the checkpoint's own) and ``config`` (what ``config.json`` in that folder
                  holds, None when there is none or the folder is the checkpoint's own)
``tokenizer.json``  of the tokenizer its size alone: an object with ``n_tokens``
``generation_config.json``  the object in it
``README.md``  the model card: an object with ``folder``, the name of the checkpoint's folder, and ``text``, "" when
               there is none or it cannot be read
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from hf2q.errors import ConfigError, ContractError, SourceError
from hf2q.formats.strict_json import parse
from hf2q.formats.tokenizer.files import expect, read_bounded, read_object

MAX_SIDE_FILE_BYTES = 1 << 20


def with_side_files(directory: Path, config: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    """`config` with what the files `names` in `directory` hold.

    Errors: ContractError for a name that is not known here; FormatError, ConfigError and SourceError for files that
    cannot be understood.
    """
    found = dict(config)
    for name in names:
        reader = READERS.get(name)
        if reader is None:
            raise ContractError(f"side file {name!r} is not known, expected one of {', '.join(READERS)}")
        if name in config:
            raise ConfigError(f"{directory / 'config.json'} has a key {name!r}, which is the name of a file beside it")
        value = reader(directory)
        if value is not None:
            found[name] = value
    return found


def read_modules(directory: Path) -> list[dict[str, Any]] | None:
    """The modules of sentence-transformers, each with its own configuration; None when there are none."""
    path = directory / "modules.json"
    listed = _read(path)
    if listed is None:
        return None
    modules = []
    for place, entry in enumerate(expect(listed, list, str(path))):
        here = f"{path}: [{place}]"
        module = expect(entry, dict, here)
        kind = expect(module.get("type"), str, f"{here}.type")
        folder = expect(module.get("path"), str, f"{here}.path")
        modules.append({"type": kind, "path": folder, "config": _module_config(directory, folder, f"{here}.path")})
    return modules


def read_token_count(directory: Path) -> dict[str, int] | None:
    """How many tokens the tokenizer has: those of its vocabulary, and those that were added beyond it."""
    tokenizer = read_object(directory / "tokenizer.json")
    if tokenizer is None:
        return None
    where = str(directory / "tokenizer.json")
    vocab = expect(expect(tokenizer.get("model"), dict, f"{where}: model").get("vocab"), dict, f"{where}: model.vocab")
    added = expect(tokenizer.get("added_tokens") or [], list, f"{where}: added_tokens")
    texts = {entry.get("content") for entry in added if isinstance(entry, dict)}
    return {"n_tokens": len(vocab) + len(texts - vocab.keys())}


def read_generation_config(directory: Path) -> dict[str, Any] | None:
    """What ``generation_config.json`` holds."""
    path = directory / "generation_config.json"
    found = _read(path)
    return None if found is None else expect(found, dict, str(path))


def read_card(directory: Path) -> dict[str, str]:
    """What the checkpoint calls itself. A card only describes, so one that cannot be read counts as none."""
    try:
        data = read_bounded(directory / "README.md", MAX_SIDE_FILE_BYTES) or b""
    except SourceError:
        data = b""
    return {"folder": directory.resolve().name, "text": data.decode("utf-8", errors="replace")}


READERS: Mapping[str, Callable[[Path], Any]] = {
    "modules.json": read_modules,
    "tokenizer.json": read_token_count,
    "generation_config.json": read_generation_config,
    "README.md": read_card,
}


def _module_config(directory: Path, folder: str, where: str) -> dict[str, Any] | None:
    parts = PurePosixPath(folder)
    if parts.is_absolute() or ".." in parts.parts or "\\" in folder or "\0" in folder:
        raise ConfigError(f"{where} is {folder!r}, expected a folder of the checkpoint")
    if not parts.parts:
        return None
    path = directory / folder / "config.json"
    found = _read(path)
    return None if found is None else expect(found, dict, str(path))


def _read(path: Path) -> Any:
    data = read_bounded(path, MAX_SIDE_FILE_BYTES)
    return None if data is None else parse(data, str(path))
