"""What is checked before a byte is written: where the output goes, and what it would give up."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hf2q.convert.receipt import receipt_path
from hf2q.errors import UsageError, WriteError, listing
from hf2q.formats.folder import strangers
from hf2q.plugins import Plugins
from hf2q.types import Plan

log = logging.getLogger(__name__)

TEMPLATE_KEY = "tokenizer.chat_template"


def check_fallbacks(plan: Plan, *, allowed: bool) -> None:
    """Say which tensors get another type than the recipe's because of their shape.

    Errors: UsageError naming them when that is not `allowed`.
    """
    fallen = [f"{t.name} ({t.fallback_from} → {t.qtype})" for t in plan.tensors if t.fallback_from]
    if not fallen:
        return
    message = f"{len(fallen)} tensors do not fit {plan.recipe} and get another type: {listing(fallen)}"
    if not allowed:
        raise UsageError(
            message, hint="leave --no-fallback out, or choose a type with smaller blocks (q8_0) or groups (4bit-g32)"
        )
    log.info("%s", message)


def check_template(plan: Plan, plugins: Plugins) -> None:
    """Say so when a model of a family that chats has no chat template: it will be served, but refuse messages."""
    entry = plugins.archs.get(plan.arch)
    if entry is None or not entry.chat_format or any(field.key.startswith(TEMPLATE_KEY) for field in plan.metadata):
        return
    log.info(
        "the source has no chat template, so the model will not chat; hf2q gguf-patch --set-file %s=PATH adds one",
        TEMPLATE_KEY,
    )


def check_output(output: Path, source: Path | None, weights: Iterable[Path] = (), *, suffix: str, force: bool) -> None:
    """Refuse an output that is part of the source, that exists (unless `force`), or that has no place to be.

    The comparison with the source's files is by identity, so every spelling, link and hard link is seen. `weights` are
    those that may lie in folders of their own; without a folder `source` they are all there is. A new file in that
    folder must end in `suffix`: under another name it could be taken for a part of the checkpoint.

    Errors: UsageError, WriteError.
    """
    if not output.parent.is_dir():
        raise WriteError(f"{output} cannot be written: there is no directory {output.parent}", hint="create it first")
    try:
        foreign = output.suffix != suffix and not output.exists()
        if source is not None and foreign and output.parent.samefile(source):
            raise UsageError(
                f"{output} would lie among the files of the source, but its name does not end in {suffix}",
                hint="choose another output with -o",
            )
        there = output.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise WriteError(f"{output} cannot be written: {error.strerror}") from error
    for path in _files(source, weights):
        if os.path.samestat(path.stat(), there):
            raise UsageError(f"{output} is {path}, a file of the source", hint="choose another output with -o")
    if output.is_dir():
        raise WriteError(f"{output} is a directory, expected a file or nothing")
    if not force:
        raise UsageError(f"{output} exists", hint="--force replaces it, -o chooses another output")


def check_folder(
    output: Path, source: Path | None, files: Iterable[Path], names: Sequence[str], *, force: bool
) -> None:
    """Refuse an output folder that holds any of the source, that exists (unless `force`), or that has no place to be.

    With `force` a folder is replaced that holds nothing but files of these `names` and receipts; an empty one always.
    Errors: UsageError, WriteError.
    """
    if not output.parent.is_dir():
        raise WriteError(f"{output} cannot be written: there is no directory {output.parent}", hint="create it first")
    try:
        there = output.resolve()
        kept = [path.resolve() for path in ((source,) if source is not None else ())] + [p.resolve() for p in files]
        if any(path.is_relative_to(there) for path in kept):
            raise UsageError(f"{output} holds the source", hint="choose another output with -o")
        if not os.path.lexists(output):
            return
        if not output.is_dir() or output.is_symlink():
            raise WriteError(f"{output} is no folder, expected one or nothing", hint="choose another output with -o")
        foreign = strangers(output, {*names, *(receipt_path(output / name).name for name in names)})
        if not foreign and (force or not any(output.iterdir())):
            return
    except OSError as error:
        raise WriteError(f"{output} cannot be written: {error.strerror}") from error
    if not force:
        raise UsageError(f"{output} exists", hint="--force replaces it, -o chooses another output")
    raise UsageError(
        f"{output} holds {listing(foreign, 3)}, which this conversion does not write, so it is not replaced",
        hint="choose another output with -o, or remove the folder yourself",
    )


def check_space(output: Path, plan: Plan) -> None:
    """Refuse when the disk has no room for the tensors; the writer checks again, to the byte.

    Errors: WriteError saying what is needed, where, and what there is.
    """
    try:
        free = shutil.disk_usage(output.parent).free
    except OSError as error:
        log.info("free space of %s is not known: %s", output.parent, error.strerror)
        return
    if free < plan.nbytes:
        raise WriteError(
            f"{output} needs {plan.nbytes:,} bytes, {output.parent} has {free:,} free",
            hint="free some space, or choose another disk with -o",
        )


def _files(directory: Path | None, weights: Iterable[Path]) -> Iterator[Path]:
    beside = (*directory.iterdir(), *(directory / "additional_chat_templates").glob("*")) if directory else ()
    for path in (*beside, *weights):
        try:
            if path.is_file():
                yield path
        except OSError as error:
            log.debug("%s is not looked at: %s", path, error.strerror)
