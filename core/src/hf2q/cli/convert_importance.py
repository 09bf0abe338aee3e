"""``hf2q convert --imatrix-corpus``: the importance matrix is computed first, and kept beside the output."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from hf2q.cli.progress import bar, progress_bar
from hf2q.errors import UsageError

ENDING = ".imatrix.gguf"


def check(
    *,
    imatrix: str | None,
    corpus: str | None,
    out: Path | None,
    n_ctx: int | None,
    dry_run: bool,
) -> None:
    """Errors: UsageError for options that contradict each other, or that nothing would follow."""
    if corpus is None:
        for flag, value in (("--imatrix-out", out), ("--imatrix-n-ctx", n_ctx)):
            if value is not None:
                raise UsageError(
                    f"{flag} is about a matrix that is computed, and none is", hint="--imatrix-corpus TEXT"
                )
        return
    if imatrix is not None:
        raise UsageError(
            f"both --imatrix {imatrix} and --imatrix-corpus {corpus}",
            hint="read a matrix from a file, or compute one from a text",
        )
    if dry_run:
        raise UsageError(
            "--dry-run reads no weights, so it computes no importance matrix",
            hint="leave --imatrix-corpus out, or compute the matrix first: hf2q imatrix MODEL.gguf --corpus TEXT",
        )


def computed(
    source: str | None,
    quant: str,
    output: str | None,
    corpus: str,
    *,
    repo: str | None,
    revision: str | None,
    out: Path | None,
    n_ctx: int | None,
    pre: str | None,
    threads: int | None,
    force: bool,
    shown: bool,
) -> Path:
    """Compute the matrix of what is to be converted, write it, and say where it is.

    What can be told to fail later is told before: an unknown mix, outputs that exist. Errors: as `convert`, `compute`.
    """
    from hf2q.convert.names import find_recipe
    from hf2q.formats.imatrix import write_imatrix
    from hf2q.plugins import Plugins
    from hf2q.quality.imatrix.compute import compute
    from hf2q.quality.imatrix.produce import runnable
    from hf2q.quality.shipped import open_corpus
    from hf2q.quality.text import N_CTX

    plugins = Plugins.load()
    find_recipe(plugins, quant)
    text = open_corpus(corpus)
    target = out or beside(source if repo is None else repo, output)
    for path in (target, *([Path(output).expanduser()] if output else [])):
        if path.is_file() and not force:
            raise UsageError(f"{path} exists", hint="--force replaces it")
    if target.is_dir() or not target.parent.is_dir():
        raise UsageError(f"{target} cannot be the importance matrix: no file in a directory that there is")
    with ExitStack() as stack:
        with progress_bar(shown=shown) as (progress, downloading):
            model = stack.enter_context(
                runnable(
                    source,
                    target.parent,
                    repo=repo,
                    revision=revision,
                    pre=pre,
                    threads=threads,
                    plugins=plugins,
                    progress=progress,
                    downloading=downloading,
                )
            )
        with bar(shown=shown) as report:
            size = N_CTX if n_ctx is None else n_ctx
            found = compute(model, text, n_ctx=size, threads=threads, report=report, plugins=plugins)
    write_imatrix(target, found, "gguf")
    return target


def beside(source: str | None, output: str | None) -> Path:
    """Where the matrix goes unless the user says: named as the output, or in its folder as the source."""
    place = Path(output).expanduser() if output else Path()
    if place.is_dir():
        name = Path(source or "model").expanduser().resolve().name
        return place / f"{name.removesuffix('.gguf')}{ENDING}"
    return place.with_name(f"{place.name.removesuffix('.gguf')}{ENDING}")
