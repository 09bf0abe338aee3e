"""Bounded reading of a checkpoint's tokenizer files, and type checks that name the file and the key.

Lowest module of the tokenizer package. Nothing is opened before its size is known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hf2q.errors import ConfigError, FormatError, MissingFileError, SourceError
from hf2q.formats.files import open_regular, read_bytes, refuse_lfs_pointer

MAX_JSON_BYTES = 256 << 20
MAX_TEMPLATE_BYTES = 4 << 20

T = TypeVar("T")


def read_bounded(path: Path, limit: int) -> bytes | None:
    """Contents of a regular file, None when there is none.

    Errors: SourceError when it holds more than `limit` bytes or cannot be read; MissingFileError for a link to nowhere
    and for a git-lfs pointer in place of the file.
    """
    try:
        if not (path.exists() or path.is_symlink()):
            return None
    except OSError as error:  # a folder that may not be entered
        raise SourceError(f"{path} cannot be opened: {error.strerror}") from error
    descriptor, size = open_regular(str(path))
    try:
        if size > limit:
            raise SourceError(f"{path} has {size} bytes, expected at most {limit} in such a file")
        data = read_bytes(descriptor, size, 0, str(path))
    finally:
        os.close(descriptor)
    refuse_lfs_pointer(data, str(path))
    return data


def read_text(path: Path) -> str | None:
    """A UTF-8 text file, None when absent. Line ends become ``\\n``, as when Python opens a file as text."""
    data = read_bounded(path, MAX_TEMPLATE_BYTES)
    if data is None:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not valid UTF-8 at byte {error.start}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_object(path: Path, *, required: bool = False, hint: str | None = None) -> dict[str, Any] | None:
    """A JSON object, None when the file is absent.

    Errors: MissingFileError when absent and `required`; FormatError when not JSON; ConfigError when not an object.
    """
    data = read_bounded(path, MAX_JSON_BYTES)
    if data is None:
        if required:
            raise MissingFileError(f"{path} does not exist", hint=hint)
        return None
    try:
        parsed = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"{path} holds {kind(parsed)}, expected an object")
    return parsed


def doubled_name(data: bytes, *keys: str) -> str | None:
    """A name that occurs twice in the object at `keys` of a JSON text; None when there is none, or no such object.

    Parsers keep the last of two, so that nothing else would tell.
    """
    raw = msgspec.Raw(data)
    try:
        for key in keys:
            raw = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get(key, msgspec.Raw(b"{}"))
        pairs = json.loads(bytes(raw), object_pairs_hook=list)
    except ValueError:  # another type: reported where the value is used
        return None
    seen: set[str] = set()
    for name, _ in pairs if bytes(raw).lstrip().startswith(b"{") else ():
        if name in seen:
            return str(name)
        seen.add(name)
    return None


def kind(value: object) -> str:
    """The JSON word for the type of `value`, for messages."""
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    names |= {list: "an array", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def expect(value: object, wanted: type[T], where: str) -> T:
    """`value` when it is of the JSON type `wanted`, which is exact: a boolean is not a number.

    `where` names file and key. Errors: ConfigError.
    """
    if type(value) is not wanted:
        raise ConfigError(f"{where} is {kind(value)}, expected {kind(wanted())}")
    return value


def member(table: Mapping[str, Any], key: str, wanted: type[T], where: str, default: T) -> T:
    """``table[key]`` of type `wanted`; `default` when absent or null. Errors: ConfigError naming file and key."""
    value = table.get(key)
    return default if value is None else expect(value, wanted, f"{where}: {key}")
