"""A checkpoint on a hub, opened like a local one: its files are taken first, verified, at one commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from hf2q.convert.origin import Origin, OriginFile
from hf2q.convert.quantized import read_quantization
from hf2q.convert.source import Source, open_source, read_config
from hf2q.errors import UsageError
from hf2q.formats.safetensors import Checkpoint
from hf2q.hub.reference import Reference, parse_reference, repository
from hf2q.hub.repository import Progress, Repository, open_repository
from hf2q.hub.skeleton import checkpoint_skeleton


def find_reference(
    source: str | os.PathLike[str] | None, repo: str | None = None, revision: str | None = None
) -> Reference | None:
    """The repository that is meant, or None for something local: a `source` that is an id or an address, or a `repo`.

    Errors: UsageError for both or neither, and for a revision of something local.
    """
    if repo is not None:
        if source is not None:
            raise UsageError(f"both a source, {os.fspath(source)}, and --repo {repo}", hint="leave one of them out")
        return repository(repo, revision)
    if source is None:
        raise UsageError("no source", hint="name a checkpoint directory, a GGUF file, or org/name")
    found = parse_reference(source, revision) if isinstance(source, str) else None
    if found is None and revision is not None:
        raise UsageError(
            f"--revision {revision} cannot be used: {os.fspath(source)} is meant as a file or directory here",
            hint="--repo org/name names a repository whatever is here",
        )
    return found


@contextmanager
def open_from_hub(
    reference: Reference,
    check: Callable[[Source], object] | None = None,
    *,
    weights: bool = True,
    progress: Progress | None = None,
) -> Iterator[Source]:
    """Take what a conversion needs and open it, for the `with` statement.

    check    called with what is known without weights (a checkpoint without tensors), so that what it refuses is
             refused before the large files come
    weights  False takes their headers alone; then no tensor's data must be read

    Errors: MissingFileError, AccessError, HubError, WriteError; those of `hf2q.convert.source.open_source`.
    """
    opened = open_repository(reference, progress)
    folder = opened.take(opened.small())
    config = read_config(folder)
    read_quantization(folder, config)
    shards = opened.weights(folder)
    if check is not None:
        check(Source(directory=folder, config=config, checkpoint=Checkpoint(str(folder), {}, {})))
    if weights:
        folder = opened.take(shards)
        yield _with_origin(open_source(str(folder)), opened)
        return
    with checkpoint_skeleton(opened, folder, shards) as made:
        yield _with_origin(open_source(str(made)), opened)


def _with_origin(source: Source, opened: Repository) -> Source:
    files = tuple(
        OriginFile(
            path=path, size=found.size, sha256=found.sha256, git="" if opened.expected(path).sha256 else found.git
        )
        for path, found in opened.here.items()
    )
    origin = Origin(
        asked=opened.reference.asked,
        repo=opened.reference.repo,
        canonical=opened.listing.canonical,
        revision=opened.listing.revision,
        commit=opened.listing.commit,
        endpoint=opened.endpoint,
        files=files,
    )
    return msgspec.structs.replace(source, origin=origin)
