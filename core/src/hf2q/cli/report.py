"""``hf2q report``: what files cost against their source, as a page, a model card or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, validators

from hf2q.cli.measuring import POSITIVE, Exact, Threads, opened
from hf2q.cli.numbers import whole_number
from hf2q.cli.output import note, print_json
from hf2q.errors import UsageError, WriteError

if TYPE_CHECKING:
    from hf2q.quality.report.measure import Report, Run

N_CTX = 512


def command(
    *files: Annotated[Path, Parameter(help="GGUF files made from one checkpoint; of one in several, the first.")],
    against: Annotated[
        Path,
        Parameter(help="What they are measured against: the directory of the checkpoint, or a GGUF file made from it."),
    ],
    corpus: Annotated[
        str | None,
        Parameter(help="A text file, or the name of a text that comes with hf2q: measure predictions too."),
    ] = None,
    n_ctx: Annotated[
        int | None,
        Parameter(
            name="--n-ctx",
            help=f"Tokens of a window (default: {N_CTX}).",
            converter=whole_number,
            validator=validators.Number(gte=2),
        ),
    ] = None,
    chunks: Annotated[
        int | None,
        Parameter(help="Windows at most; default: all.", converter=whole_number, validator=POSITIVE),
    ] = None,
    method: Annotated[
        Literal["plain", "llama"] | None, Parameter(help="Which predictions count, as for kld (default: plain).")
    ] = None,
    record: Annotated[
        Path | None,
        Parameter(help="A folder that keeps the results of each window; a run that was interrupted goes on from it."),
    ] = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"], help="The page to write, HTML.")] = None,
    markdown: Annotated[Path | None, Parameter(help="A model card to write, Markdown.")] = None,
    force: Annotated[bool, Parameter(help="Replace existing outputs.")] = False,
    backend: Annotated[str | None, Parameter(help="What to compute predictions with (default: auto).")] = None,
    threads: Threads = None,
    exact: Exact = False,
    json: Annotated[bool, Parameter(help="Print everything as JSON.")] = False,
) -> None:
    """Report what quantized files cost: sizes, types, errors of weights by tensor and layer, and how they were made.

    With a text also how far their predictions are from the reference's. For that, a checkpoint's directory is first
    converted to a temporary f32 file, beside the output.
    """
    from hf2q.cli.progress import bar
    from hf2q.quality.report.card import markdown_card
    from hf2q.quality.report.measure import make_report, report_data
    from hf2q.quality.report.page import html_page

    _check(files, against, output, markdown, force=force, json=json)
    _check_predicting(
        corpus,
        {
            f"--n-ctx {n_ctx}": n_ctx is not None,
            f"--chunks {chunks}": chunks is not None,
            f"--method {method}": method is not None,
            f"--record {record}": record is not None,
            f"--backend {backend}": backend is not None,
            "--exact": exact,
        },
    )
    run: Run | None = None
    if corpus is not None:
        run = _run(corpus, n_ctx or N_CTX, chunks, method or "plain", record, backend or "auto", threads, exact=exact)
    beside = (output or markdown or Path("x")).absolute().parent
    with bar(shown=not json) as progress, _runnable(against, beside, wanted=run is not None) as runnable:
        report: Report = make_report(files, against, run=run, runnable=runnable, threads=threads, progress=progress)
    texts = [
        (path, made(report)) for path, made in ((output, html_page), (markdown, markdown_card)) if path is not None
    ]
    for path, text in texts:
        _write(path, text)
        note(f"wrote {path}")
    if json:
        print_json(report_data(report))


def _check(
    files: tuple[Path, ...], against: Path, output: Path | None, markdown: Path | None, *, force: bool, json: bool
) -> None:
    """Refuse before anything is measured. Errors: UsageError."""
    if not files:
        raise UsageError("no file to report about", hint="hf2q report FILE --against SOURCE -o report.html")
    outputs = [path for path in (output, markdown) if path is not None]
    if not outputs and not json:
        raise UsageError("nothing to write", hint="-o report.html writes a page, --markdown card.md a model card")
    if len({path.resolve() for path in outputs}) < len(outputs):
        raise UsageError(f"page and model card cannot both be {output}", hint="give them different names")
    inputs = {path.resolve() for path in (*files, against)}
    for path in outputs:
        if path.resolve() in inputs or path.suffix.lower() in (".gguf", ".safetensors"):
            raise UsageError(f"{path} is a file of weights, or the name of one", hint="report.html is a better name")
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise UsageError(f"{path} cannot be written: it is a directory, or its directory is missing")
        if path.exists() and not force:
            raise UsageError(f"{path} exists", hint="--force replaces it")


def _check_predicting(corpus: str | None, given: dict[str, bool]) -> None:
    """What is about predictions decides nothing without a text. Errors: UsageError naming the flags."""
    flags = [flag for flag, there in given.items() if there]
    if corpus is None and flags:
        raise UsageError(
            f"{' and '.join(flags)} cannot be followed: without a text no predictions are measured",
            hint="--corpus NAME|FILE gives one",
        )


def _run(
    corpus: str,
    n_ctx: int,
    chunks: int | None,
    method: Literal["plain", "llama"],
    record: Path | None,
    backend: str,
    threads: int | None,
    *,
    exact: bool,
) -> Run:
    from hf2q.quality.report.measure import Run
    from hf2q.quality.shipped import open_corpus

    text = open_corpus(corpus)
    if record is not None:
        try:
            record.mkdir(exist_ok=True)
        except OSError as error:
            raise WriteError(f"the folder {record} cannot be made: {error.strerror}") from error
    return Run(
        opened=lambda path, whole: opened(path, backend=backend, threads=threads, exact=whole),
        corpus=text,
        n_ctx=n_ctx,
        method=method,
        most=chunks,
        exact=exact,
        record=record,
    )


@contextmanager
def _runnable(against: Path, beside: Path, *, wanted: bool) -> Iterator[Path]:
    """A file that predicts as `against`: itself, or, of a checkpoint, one made for the time being."""
    if not (wanted and against.is_dir()):
        yield against
        return
    from hf2q.convert import convert

    with TemporaryDirectory(dir=beside, prefix=".hf2q-report-") as folder:
        made = Path(folder) / f"{against.resolve().name}.f32.gguf"
        note(f"converting {against} to f32, for its predictions")
        convert(against, "f32", made, sidecars=False, receipt=False)
        yield made


def _write(path: Path, text: str) -> None:
    from hf2q.formats.whole import write_whole

    write_whole(str(path), [text.encode()])
