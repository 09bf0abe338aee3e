"""Which files ``hf2q serve`` may serve, from its options."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf2q.cli.output import printable
from hf2q.errors import MissingFileError, UsageError, listing

if TYPE_CHECKING:
    from hf2q.serve.api.registered import ModelFile

log = logging.getLogger(__name__)


def check_files(models: Sequence[Path]) -> None:
    """Errors: MissingFileError, and UsageError for what is no file or is there twice."""
    for path in models:
        if not path.exists():
            raise MissingFileError(f"there is no file {path}")
        if path.is_dir():
            raise UsageError(
                f"{path} is a folder; --model takes a GGUF file",
                hint=f"--models-dir {path} serves the files in it; hf2q convert {path} --quant q4_k_m makes one of a "
                "checkpoint",
            )
    twice = {path for path in models if models.count(path) > 1}
    if twice:
        raise UsageError(f"--model is given twice: {listing(map(str, twice))}")


def model_files(
    models: Sequence[Path],
    folder: Path | None,
    *,
    mmproj: Sequence[str],
    chat_template_file: Sequence[str],
    alias: Sequence[str],
) -> tuple[ModelFile, ...]:
    """Every file that may be served; those of `models` are to be loaded at the start.

    Errors: UsageError, MissingFileError for a folder or a file that is not there.
    """
    import msgspec

    from hf2q.serve.api.registered import ModelFile, bytes_of, merged, named_after, scan, with_aliases

    named = [ModelFile(id=named_after(path), path=path, initial=True) for path in models]
    found: tuple[ModelFile, ...] = ()
    if folder is not None:
        from hf2q.plugins import Plugins

        scanned = scan(folder, Plugins.load())
        found = scanned.models
        for path, why in scanned.others:
            log.warning("%s is not served: %s", path, why)
        if not found and not named:
            raise UsageError(f"there is no model below {folder}", hint="hf2q info FILE says what a file is")
    files = merged(named, found)
    ids = [file.id for file in files]
    only = named[0].id if len(named) == 1 else ids[0] if len(ids) == 1 else None
    projectors = per_model("--mmproj", mmproj, ids, only)
    templates = per_model("--chat-template-file", chat_template_file, ids, only)
    made = []
    for file in files:
        projector = projectors.get(file.id, file.mmproj)
        made.append(
            msgspec.structs.replace(
                file,
                mmproj=projector,
                chat_template=templates.get(file.id),
                nbytes=bytes_of(file.path, projector),
            )
        )
    return with_aliases(made, dict(_pair("--alias", text) for text in _unique("--alias", alias)))


def per_model(option: str, values: Sequence[str], ids: Collection[str], only: str | None) -> dict[str, Path]:
    """Files that belong to models: each value is ``MODEL=FILE``, or a file alone, which is the model `only`'s.

    Errors: UsageError when it cannot be told whose a file is, or a model gets two; MissingFileError.
    """
    found: dict[str, Path] = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if equals and name in ids:
            id, path = name, Path(rest)
        elif only is not None:
            id, path = only, Path(value)
        else:
            raise UsageError(
                f"{option} {printable(value)} does not say which model it is for; there are: {listing(ids)}",
                hint=f"{option} MODEL=FILE",
            )
        if id in found:
            raise UsageError(f"{option}: the model {id!r} is given two files, {found[id]} and {path}")
        if not path.is_file():
            raise MissingFileError(f"there is no file {path}")
        found[id] = path
    return found


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UsageError(f"{option} {printable(text)} is not of the form NAME=MODEL", hint=f"{option} gpt-4o=qwen3-4b")
    return name, value


def _unique(option: str, texts: Sequence[str]) -> Sequence[str]:
    names = [text.partition("=")[0] for text in texts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{option} gives {twice[0]!r} two meanings")
    return texts
