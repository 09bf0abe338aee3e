"""Where a plan goes: the names of the files, what is in each, and what writes them. Below `run`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hf2q.convert.metadata import default_name
from hf2q.convert.shards import cut_plan, group_tensors, shard_paths
from hf2q.errors import UsageError, WriteError
from hf2q.formats.gguf.shards import ShardedWriter
from hf2q.types import FolderWriter, Plan, Record, Writer, WriterEntry, resolve


class Target(Record, frozen=True, kw_only=True):
    """Where plans go: the files, what is in each, and how to open what writes them.

    `folder` is what a format writes whose output is a folder; the files are in it, and its plan is all of theirs.
    """

    paths: tuple[Path, ...]
    plans: tuple[Plan, ...]
    open_writer: Callable[[], Writer]
    folder: Path | None = None

    @property
    def output(self) -> Path:
        """What the user asked for: the folder, or the first file."""
        return self.folder or self.paths[0]


def limited(plan: Plan, max_size: int | None, max_tensors: int | None) -> tuple[int, ...]:
    """The shards that limits ask for; none when there is no limit, or everything fits into one file."""
    if max_size is None and max_tensors is None:
        return ()
    counts = group_tensors(plan, max_size, max_tensors)
    return counts if len(counts) > 1 else ()


def target_for(path: Path, plan: Plan, shards: Sequence[int], entry: WriterEntry) -> Target:
    """One file, or one for each of `shards`, which count tensors; or the folder that the format writes."""
    if entry.layout:
        maker: type[FolderWriter] = resolve(entry.writer)
        paths = tuple(path / name for name in maker.file_names(plan))
        return Target(paths=paths, plans=(plan,), open_writer=lambda: maker(str(path), plan), folder=path)
    if not shards:
        writer: type[Writer] = resolve(entry.writer)
        return Target(paths=(path,), plans=(plan,), open_writer=lambda: writer(str(path), plan))
    return _several(shard_paths(path, len(shards), entry.suffix), cut_plan(plan, shards))


def _several(paths: tuple[Path, ...], plans: tuple[Plan, ...]) -> Target:
    """Files that appear together."""
    return Target(paths=paths, plans=plans, open_writer=lambda: ShardedWriter([str(path) for path in paths], plans))


def joined(target: Target, beside: Target) -> Target:
    """Both; the first file of `target` gets its name last."""
    return _several((*target.paths, *beside.paths), (*target.plans, *beside.plans))


def output_path(output: str | os.PathLike[str] | None, plan: Plan, suffix: str) -> Path:
    """The file that the user means: a folder, or nothing at all, asks for the usual name in it.

    Errors: UsageError, WriteError for what cannot be the name of a file.
    """
    if output is not None and not os.fspath(output):
        raise UsageError("the output is named by an empty text", hint="-o FILE names it; without -o it goes here")
    try:
        path = Path(output).expanduser() if output is not None else Path()
    except RuntimeError as error:  # the home of a user that does not exist
        raise WriteError(f"{output} cannot be written: {error}") from None
    if output is not None and os.fspath(output).endswith("/") and not path.is_dir():
        raise WriteError(f"{output} cannot be written: there is no such directory", hint="create it first")
    if path.is_dir():
        return path / f"{default_name(plan.metadata, plan.recipe)}{suffix}"
    return path
