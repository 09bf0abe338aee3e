"""Whatever is to be converted, opened and planned: a checkpoint directory or a GGUF file. Between `run` and the two.

Options that mean nothing for one of the two are refused here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hf2q.convert.choices import Planned
from hf2q.convert.gguf_source import is_gguf, open_gguf_source
from hf2q.convert.importance import Importance
from hf2q.convert.plan import make_plan
from hf2q.convert.requantize import make_gguf_plan
from hf2q.convert.source import open_source
from hf2q.errors import UsageError
from hf2q.plugins import Plugins
from hf2q.types import PolicyOptions, Recipe, Record


class Request(Record, frozen=True, kw_only=True):
    """What is asked of a conversion, apart from source, output and threads; see `hf2q.convert.run.convert`."""

    recipe: Recipe
    options: PolicyOptions
    importance: Importance | None = None
    via: str = "auto"
    mtp: bool = True
    pre: str | None = None
    allow_requantize: bool = False
    keep_split: bool = False


class Prepared(Record, frozen=True, kw_only=True):
    """A plan, and what must not be overwritten: the source's `files`, and for a checkpoint all in its `folder`.

    `shards` counts the tensors of each file of the source when the output keeps them.
    """

    planned: Planned
    folder: Path | None
    files: tuple[Path, ...]
    shards: tuple[int, ...] = ()


@contextmanager
def prepare(source: str, request: Request, plugins: Plugins) -> Iterator[Prepared]:
    """Open and plan; the weights can be read inside the `with` statement.

    Errors: UsageError for options that do not apply to this kind of source; what opening and planning raise.
    """
    if is_gguf(source):
        _refuse(
            "a GGUF file",
            {
                f"--via {request.via}": request.via != "auto",
                "--no-mtp": not request.mtp,
                f"--pre {request.pre}": request.pre is not None,
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
    opened = open_source(source)
    planned = make_plan(
        opened,
        request.recipe,
        plugins,
        via=request.via,
        mtp=request.mtp,
        pre=request.pre,
        options=request.options,
        importance=request.importance,
    )
    files = tuple(opened.directory / file.name for file in opened.checkpoint.files)
    yield Prepared(planned=planned, folder=opened.directory, files=files)


@contextmanager
def _prepared_gguf(source: str, request: Request, plugins: Plugins) -> Iterator[Prepared]:
    with open_gguf_source(source) as opened:
        if request.keep_split and len(opened.files) == 1:
            raise UsageError(
                f"--keep-split keeps the shards of a source in several files, and {source} is one file",
                hint="leave --keep-split out; --split-max-size writes several files",
            )
        planned = make_gguf_plan(
            opened,
            request.recipe,
            plugins,
            options=request.options,
            importance=request.importance,
            allow_requantize=request.allow_requantize,
            keep_split=request.keep_split,
        )
        shards = tuple(len(file.tensors) for file in opened.files) if request.keep_split else ()
        files = tuple(Path(file.path) for file in opened.files)
        yield Prepared(planned=planned, folder=None, files=files, shards=shards)


def _refuse(kind: str, asked: dict[str, bool], hint: str) -> None:
    flags = [flag for flag, given in asked.items() if given]
    if flags:
        raise UsageError(f"{' and '.join(flags)} cannot be used when the source is {kind}", hint=hint)
