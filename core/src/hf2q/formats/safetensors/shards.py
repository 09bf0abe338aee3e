"""Which files make up a checkpoint: one, or the shards that its index names.

Follows llama.cpp conversion/base.py (`ModelBase.index_tensors`, `get_model_part_names`): an index decides when there is
one, otherwise all files ``model*.safetensors`` count; both in the order of their names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from hf2q.errors import FormatError, MissingFileError, SourceError, listing
from hf2q.formats.files import open_regular, read_bytes, refuse_lfs_pointer
from hf2q.formats.safetensors.header import MAX_HEADER_BYTES
from hf2q.formats.strict_json import parse
from hf2q.types import Record

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_NUMBERED = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{1,9})-of-(?P<total>[0-9]{1,9})(?P<suffix>\.safetensors)")


class Shards(Record, frozen=True, kw_only=True):
    """Files relative to the checkpoint, sorted; `weight_map` says which file holds which tensor, None without index."""

    files: tuple[str, ...]
    weight_map: dict[str, str] | None


def find_shards(directory: str) -> Shards:
    """Decide which files belong to the checkpoint.

    Errors: MissingFileError when there is no checkpoint or a file of it is missing; FormatError for a bad index.
    """
    names = _names(directory)
    weight_map = read_index(str(Path(directory, INDEX))) if INDEX in names else None
    return choose_shards(
        directory, names, weight_map, lambda file: _exists(Path(directory, file)), "download the checkpoint again"
    )


def choose_shards(
    where: str, names: Sequence[str], weight_map: dict[str, str] | None, exists: Callable[[str], bool], hint: str
) -> Shards:
    """Decide by names alone; `names` are the files beside config.json, `hint` what to do about one that is missing.

    Errors: as `find_shards`; `where` names the checkpoint in them.
    """
    found = tuple(name for name in names if name.startswith("model") and name.endswith(".safetensors"))
    if weight_map is None:
        if not found:
            raise _nothing(where, list(names))
        _check_numbers(where, found, hint)
        return Shards(files=found, weight_map=None)
    files = tuple(sorted(set(weight_map.values())))
    if SINGLE in found and SINGLE not in files:
        raise FormatError(
            f"{where} has both {SINGLE} and an index ({INDEX}) that does not name it, expected one checkpoint",
            hint="remove the one that is out of date",
        )
    missing = [file for file in files if not exists(file)]
    if missing:
        raise MissingFileError(
            f"{where} lacks {len(missing)} of the {len(files)} files that {INDEX} names: {listing(missing)}", hint=hint
        )
    return Shards(files=files, weight_map=weight_map)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, or a folder that may not be entered
        return False


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 (names are what is wanted)
    except (FileNotFoundError, ValueError):
        raise MissingFileError(f"{directory} does not exist, expected the folder of a checkpoint") from None
    except NotADirectoryError:
        raise MissingFileError(
            f"{directory} is a file, expected the folder of a checkpoint", hint="name the folder that holds it"
        ) from None
    except OSError as error:
        raise SourceError(f"{directory} cannot be read: {error.strerror}") from error


def _nothing(directory: str, names: list[str]) -> MissingFileError:
    message = f"{directory} has neither {INDEX} nor a file model*.safetensors"
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        return MissingFileError(
            f"{message}, only PyTorch pickles, which can run code and are not read",
            hint="save the model with safetensors, e.g. model.save_pretrained(folder, safe_serialization=True)",
        )
    others = [name for name in names if name.endswith((".safetensors", ".gguf"))]
    if others:
        return MissingFileError(
            f"{message}, but {listing(others)}", hint="expected a checkpoint in Hugging Face's layout"
        )
    return MissingFileError(message, hint="name the folder that holds config.json and the weights")


def _check_numbers(directory: str, files: tuple[str, ...], hint: str) -> None:
    """Without an index, names like model-00001-of-00003.safetensors still tell that a file is missing."""
    for file in files:
        match = _NUMBERED.fullmatch(file)
        if match is None:
            continue
        total, width = int(match["total"]), len(match["number"])
        present = sum(1 for other in files if _same_series(match, _NUMBERED.fullmatch(other)))
        if present != total or not 1 <= int(match["number"]) <= total:
            example = f"{match['stem']}-{1:0{width}}-of-{match['total']}{match['suffix']}"
            raise MissingFileError(
                f"{directory} has {present} files of the series {example}, expected {total}",
                hint=hint,
            )


def _same_series(one: re.Match[str], other: re.Match[str] | None) -> bool:
    return other is not None and (one["stem"], one["total"]) == (other["stem"], other["total"])


def read_index(path: str) -> dict[str, str]:
    """Which file holds which tensor, by an index file. Errors: MissingFileError, SourceError, FormatError."""
    descriptor, size = open_regular(path)
    try:
        if size > MAX_HEADER_BYTES:
            raise FormatError(f"{path} has {size} bytes, expected at most {MAX_HEADER_BYTES}")
        raw = read_bytes(descriptor, size, 0, path)
    finally:
        os.close(descriptor)
    refuse_lfs_pointer(raw, path)
    index = parse(raw, path)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(
            f"{path}: weight_map is {str(weight_map)[:80]}, expected an object that names a file per tensor"
        )
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not _inside(file):
            raise FormatError(f"{path}: tensor {tensor!r} is said to be in {file!r}, expected a file of the checkpoint")
    return weight_map


def _inside(file: str) -> bool:
    """Whether the name stays inside the checkpoint's folder. Links are fine: the Hub's cache is made of them."""
    parts = PurePosixPath(file).parts
    return (
        file.endswith(".safetensors")
        and not file.startswith("/")
        and ".." not in parts
        and "\\" not in file
        and "\0" not in file
        and str(PurePosixPath(file)) == file
    )
