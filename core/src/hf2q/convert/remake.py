"""What has to be asked for to make a file again: source, importance matrix, options, and the types that it has.

Between `recorded`, which reads what is known of a file's making, and `verify`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from hf2q.convert.choices import Retype
from hf2q.convert.gguf_source import is_gguf
from hf2q.convert.hub_source import find_reference
from hf2q.convert.importance import Importance, read_importance
from hf2q.convert.prepare import Request
from hf2q.convert.provenance import Settings
from hf2q.convert.recorded import IMATRIX_FILE, Recorded
from hf2q.errors import UsageError
from hf2q.formats.digest import digest_file
from hf2q.formats.gguf import GgufFile
from hf2q.hub.reference import Reference, repository
from hf2q.plugins import Plugins
from hf2q.types import TensorChoiceInput, TypeChoice


def refuse_for_projector(path: str, **asked: object) -> None:
    """What decides nothing about a projector must not be asked for. Errors: UsageError naming the flags."""
    given = {name: value for name, value in asked.items() if value is not None}
    flags = ["--no-mtp" if value is False else f"--{name} {value}" for name, value in given.items()]
    if flags:
        raise UsageError(
            f"{' and '.join(flags)} cannot be followed: {path} is a projector, for which this decides nothing",
            hint="leave it out",
        )


def find_source(
    recorded: Recorded, source: str | os.PathLike[str] | None, revision: str | None, files: Sequence[GgufFile]
) -> str | Reference:
    """What the file was made from: as given, else the repository that is recorded. Errors: UsageError for neither."""
    made = recorded.made
    hub = made is not None and made.source.kind == "hub"
    if source is not None:
        found = find_reference(source, None, revision)
        if found is None:
            return os.fspath(source)
        if made is not None and hub and found.repo == made.source.name and found.revision is None:
            return repository(found.repo, made.source.revision)
        return found
    if made is not None and hub:
        return repository(made.source.name, revision or made.source.revision)
    told = f"; it was made from {made.source.name!r}" if made is not None else ""
    raise UsageError(f"{files[0].path}: from which source it was made is not known{told}", hint="--source SRC names it")


def find_importance(
    recorded: Recorded, path: str | os.PathLike[str] | None, file: GgufFile, *, inherits: bool
) -> Importance | None:
    """The matrix, under the path by which it was given then. Errors: UsageError when it is not at hand, or another."""
    digest = recorded.made.imatrix if recorded.made is not None else ""
    if path is None:
        # keys of a GGUF source are inherited, so of an unrecorded file made from one they tell nothing
        told = recorded.made is None and IMATRIX_FILE in file.metadata and not inherits
        if digest or told:
            name = recorded.imatrix_path or "?"
            known = f" with SHA-256 {digest}" if digest else ""
            raise UsageError(
                f"{file.path} was made with the importance matrix {name}{known}, which is needed to make it again",
                hint="--imatrix FILE",
            )
        return None
    if digest and (found := digest_file(path).sha256) != digest:
        raise UsageError(
            f"{os.fspath(path)} has the SHA-256 {found}, but {file.path} was made with the importance matrix "
            f"{recorded.imatrix_path or '?'}, which has {digest}",
            hint="give that matrix with --imatrix",
        )
    settings = recorded.made.settings if recorded.made is not None else Settings()
    read = read_importance(path, settings.include_weights, settings.exclude_weights)
    if read is None or not recorded.imatrix_path:
        return read
    return msgspec.structs.replace(read, path=recorded.imatrix_path)


def request_again(
    source: str | Reference,
    recorded: Recorded,
    importance: Importance | None,
    via: str | None,
    mtp: bool | None,
    pre: str | None,
    retype: Retype,
) -> Request:
    """What was asked for then; `via`, `mtp` and `pre` are taken in place of what is recorded."""
    settings = recorded.made.settings if recorded.made is not None else Settings()
    return Request(
        recipe=recorded.recipe,
        options=settings.policy(has_imatrix=importance is not None),
        importance=importance,
        via=settings.via if via is None else via,
        mtp=settings.mtp if mtp is None else mtp,
        pre=settings.pre if pre is None else pre,
        allow_requantize=isinstance(source, str) and is_gguf(source),
        keep_split=settings.keep_split,
        mmproj=recorded.projector,
        only_projector=recorded.projector,
        retype=retype,
        name=None if recorded.made is None else recorded.made.source.name.rpartition("/")[2],
    )


def types_of(
    files: Sequence[GgufFile], plugins: Plugins, importance: Importance | None, wanted: dict[str, str]
) -> Retype:
    """Gives each tensor the type that the file has it in, if it can be; what the recipe gives goes into `wanted`."""
    types = {tensor.name: tensor.qtype for file in files for tensor in file.tensors.values()}

    def usable(qtype: str, tensor: TensorChoiceInput) -> bool:
        codec = plugins.codecs.get(qtype)
        if codec is None or tensor.shape[-1] % codec.block_size:
            return False
        return importance is not None or not codec.needs_importance

    def retype(tensors: Sequence[TensorChoiceInput], choices: Sequence[TypeChoice]) -> list[TypeChoice]:
        made = []
        for tensor, choice in zip(tensors, choices, strict=True):
            wanted[tensor.name] = choice.qtype
            found = types.get(tensor.name, choice.qtype)
            own = found != choice.qtype and (found == tensor.qtype or usable(found, tensor))
            made.append(TypeChoice(qtype=found, reason="the type that the file has it in") if own else choice)
        return made

    return retype
