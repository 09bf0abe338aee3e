"""Whatever is to be converted, opened and planned: a checkpoint directory or a GGUF file. Between `run` and the two.

Options that mean nothing for one of the two are refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from hf2q.codec import QuantCodec
from hf2q.convert.choices import Planned, Retype
from hf2q.convert.family import completed, family_of
from hf2q.convert.gguf_source import is_gguf, open_gguf_source
from hf2q.convert.gguf_whole import check_whole
from hf2q.convert.hub_source import open_from_hub
from hf2q.convert.importance import Importance
from hf2q.convert.layout import make_layout, refuse_for_layout
from hf2q.convert.layout_gguf import make_gguf_layout
from hf2q.convert.origin import Origin
from hf2q.convert.plan import make_plan
from hf2q.convert.projector import make_projector_plan
from hf2q.convert.requantize import make_gguf_plan
from hf2q.convert.source import open_source
from hf2q.errors import (
    ConfigError,
    EncodeError,
    FormatError,
    MissingFileError,
    SourceError,
    TensorMismatchError,
    UsageError,
    about,
)
from hf2q.hub.reference import Reference
from hf2q.hub.repository import Progress
from hf2q.plugins import Plugins
from hf2q.policy import asked_for
from hf2q.types import PolicyOptions, Recipe, Record, WriterEntry

HINTS: Mapping[type[SourceError], str] = {
    FormatError: "the file is damaged: download it again, or save the model anew",
    ConfigError: "correct the file, or take the one that the model was published with",
    TensorMismatchError: "config.json and the weights do not belong together, or the checkpoint is damaged",
    MissingFileError: "see that the file is there: download the checkpoint again, or correct the link",
    SourceError: "see that a file is there, which can be read and is not larger than such files are",
}
"""What to do about an error of a source that says nothing more exact."""


class Request(Record, frozen=True, kw_only=True):
    """What is asked of a conversion, apart from source, output and threads; see `hf2q.convert.run.convert`.

    mmproj  a projector is wanted;  only_projector  and nothing else;  retype  has the last word on types
    name    of the model's directory, where it has another one now
    writer  the output format, when it has tensors of its own; None for GGUF
    """

    recipe: Recipe
    options: PolicyOptions
    importance: Importance | None = None
    via: str = "auto"
    mtp: bool = True
    pre: str | None = None
    allow_requantize: bool = False
    keep_split: bool = False
    mmproj: bool = False
    only_projector: bool = False
    retype: Retype | None = None
    name: str | None = None
    writer: WriterEntry | None = None


class Prepared(Record, frozen=True, kw_only=True):
    """A plan, and what must not be overwritten: the source's `files`, and for a checkpoint all in its `folder`.

    `shards` counts the tensors of each file of the source when the output keeps them. `projector` is the second file
    when one is wanted beside the model; when it is all that is wanted, it is `planned`. `origin`
    says which repository the source is, None for what lies here. `codec` gives the types of a format of its own, None
    where they are the plugins'.
    """

    planned: Planned
    folder: Path | None
    files: tuple[Path, ...]
    shards: tuple[int, ...] = ()
    projector: Planned | None = None
    origin: Origin | None = None
    codec: Callable[[str], QuantCodec] | None = None


@contextmanager
def prepare(
    source: str | Reference,
    request: Request,
    plugins: Plugins,
    *,
    weights: bool = True,
    progress: Progress | None = None,
) -> Iterator[Prepared]:
    """Open and plan; the weights can be read inside the `with` statement.

    A repository's files are downloaded first, which `progress` hears of; without `weights` they stay there, but for
    their headers.

    Errors: UsageError for options that do not apply to this kind of source; what opening and planning raise, with a
    hint for whatever a file says that is wrong. An EncodeError in the `with` statement names the source.
    """
    place = source if isinstance(source, str) else source.repo
    with _hinted(), about(place, EncodeError), _prepared(source, request, plugins, weights, progress) as prepared:
        yield prepared


@contextmanager
def _hinted() -> Iterator[None]:
    """Give a hint to errors that have none."""
    try:
        yield
    except SourceError as error:
        if error.hint is None:
            error.hint = HINTS.get(type(error))
        raise


@contextmanager
def _prepared(
    source: str | Reference, request: Request, plugins: Plugins, weights: bool, progress: Progress | None
) -> Iterator[Prepared]:
    if request.writer is not None:
        _refuse_for_layout(request, request.writer)
        if isinstance(source, str) and is_gguf(source):
            with open_gguf_source(source) as file:
                made, beside = make_gguf_layout(file, request.recipe, request.writer, plugins)
                files = (*(Path(one.path) for one in file.files), *beside)
                planned = Planned(plan=made.plan, rows=made.rows)
                yield Prepared(planned=planned, folder=None, files=files, codec=made.codec)
            return
    if isinstance(source, str) and is_gguf(source):
        _refuse(
            "a GGUF file",
            {
                f"--via {request.via}": request.via != "auto",
                "--no-mtp": not request.mtp,
                f"--pre {request.pre}": request.pre is not None,
                "--mmproj": request.mmproj,
                "--quant auto": request.recipe.name == "auto",
            },
            "these decide how a checkpoint becomes a GGUF file; convert the checkpoint to use them",
        )
        with _prepared_gguf(source, request, plugins) as prepared:
            yield prepared
        return
    _refuse(
        "a checkpoint",
        {"--allow-requantize": request.allow_requantize, "--keep-split": request.keep_split},
        "--split-max-size writes several files" if request.keep_split else "it is for GGUF files",
    )
    opening = (
        nullcontext(open_source(source))
        if isinstance(source, str)
        else open_from_hub(source, lambda known: family_of(known, plugins), weights=weights, progress=progress)
    )
    with opening as opened:
        with about(opened.directory, SourceError):
            opened = completed(opened, plugins)
        files = tuple(opened.directory / file.name for file in opened.checkpoint.files)
        if request.writer is not None:
            with about(opened.directory, SourceError):
                made = make_layout(opened, request.recipe, request.writer, plugins)
            planned = Planned(plan=made.plan, rows=made.rows)
            yield Prepared(
                planned=planned, folder=opened.directory, files=files, origin=opened.origin, codec=made.codec
            )
            return
        with about(opened.directory, SourceError):
            projector = (
                make_projector_plan(opened, request.recipe, plugins, request.retype, request.name)
                if request.mmproj
                else None
            )
        if projector is not None and request.only_projector:
            _refuse_for_projector(request)
            yield Prepared(planned=projector, folder=opened.directory, files=files, origin=opened.origin)
            return
        with about(opened.directory, SourceError):
            planned = make_plan(
                opened,
                request.recipe,
                plugins,
                via=request.via,
                mtp=request.mtp,
                pre=request.pre,
                options=request.options,
                importance=request.importance,
                retype=request.retype,
                name=request.name,
            )
        yield Prepared(planned=planned, folder=opened.directory, files=files, projector=projector, origin=opened.origin)


@contextmanager
def _prepared_gguf(source: str, request: Request, plugins: Plugins) -> Iterator[Prepared]:
    with open_gguf_source(source) as opened:
        if request.keep_split and len(opened.files) == 1:
            raise UsageError(
                f"--keep-split keeps the shards of a source in several files, and {source} is one file",
                hint="leave --keep-split out; --split-max-size writes several files",
            )
        check_whole(opened, plugins)
        with about(opened.first.path, SourceError):
            planned = make_gguf_plan(
                opened,
                request.recipe,
                plugins,
                options=request.options,
                importance=request.importance,
                allow_requantize=request.allow_requantize,
                keep_split=request.keep_split,
                retype=request.retype,
            )
        shards = tuple(len(file.tensors) for file in opened.files) if request.keep_split else ()
        files = tuple(Path(file.path) for file in opened.files)
        yield Prepared(planned=planned, folder=None, files=files, shards=shards)


def _refuse_for_layout(request: Request, writer: WriterEntry) -> None:
    refuse_for_layout(
        writer,
        {
            **dict.fromkeys(asked_for(request.options), True),
            f"--via {request.via}": request.via != "auto",
            "--no-mtp": not request.mtp,
            f"--pre {request.pre}": request.pre is not None,
            "--mmproj": request.mmproj,
            "--allow-requantize": request.allow_requantize,
            "--keep-split": request.keep_split,
        },
    )


def _refuse_for_projector(request: Request) -> None:
    """What decides nothing about a projector must not be asked for when nothing else is written."""
    asked = {
        **dict.fromkeys(asked_for(request.options), True),
        f"--via {request.via}": request.via != "auto",
        "--no-mtp": not request.mtp,
        f"--pre {request.pre}": request.pre is not None,
    }
    flags = [flag for flag, given in asked.items() if given]
    if flags:
        raise UsageError(
            f"{' and '.join(flags)} cannot be followed: the output's name contains mmproj, so only the projector is "
            "written, which is never quantized and has no text",
            hint="another name for the output writes the text model, and the projector beside it",
        )


def _refuse(kind: str, asked: dict[str, bool], hint: str) -> None:
    flags = [flag for flag, given in asked.items() if given]
    if flags:
        raise UsageError(f"{' and '.join(flags)} cannot be used when the source is {kind}", hint=hint)
