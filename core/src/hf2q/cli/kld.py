"""``hf2q kld``: how far the predictions of a file are from those of another."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from hf2q.cli.measuring import Backend, Chunks, CorpusName, Exact, How, Resume, Threads, Windows, opened
from hf2q.cli.output import print_json, print_table
from hf2q.errors import WriteError

if TYPE_CHECKING:
    from hf2q.quality.divergence import Comparison


def command(
    reference: Annotated[Path, Parameter(help="The GGUF file to be near to: f32, or as little quantized as fits.")],
    candidate: Annotated[Path, Parameter(help="The GGUF file to judge, made from the same checkpoint.")],
    /,
    *,
    corpus: CorpusName,
    n_ctx: Windows = 512,
    chunks: Chunks = None,
    method: How = "plain",
    record: Resume = None,
    per_token: Annotated[
        Path | None, Parameter(name="--csv", help="A file for the results of every token, as CSV.")
    ] = None,
    backend: Backend = "auto",
    threads: Threads = None,
    exact: Exact = False,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> None:
    """Measure the Kullback-Leibler divergence of predictions, in nats: 0 where both files predict the same.

    The reference is computed with float32 activations in any case, the candidate as it would run.
    """
    from hf2q.cli.progress import bar
    from hf2q.quality.divergence import measure
    from hf2q.quality.shipped import open_corpus

    text = open_corpus(corpus)
    with (
        opened(reference, backend=backend, threads=threads, exact=True) as first,
        opened(candidate, backend=backend, threads=threads, exact=exact) as second,
        bar(shown=not json) as report,
    ):
        found = measure(first, second, text, n_ctx=n_ctx, method=method, most=chunks, record=record, report=report)
    if per_token is not None:
        _write(per_token, found)
    summary = found.summary
    if json:
        print_json({"reference": str(reference), "candidate": str(candidate), **msgspec.to_builtins(summary)})
        return
    print_table(
        [
            ("mean", f"{summary.mean:.6f} ± {summary.mean_error:.6f} nats"),
            ("median", f"{summary.median:.6f} nats"),
            ("99 %", f"{summary.p99:.6f} nats"),
            ("maximum", f"{summary.maximum:.6f} nats"),
            ("same top token", f"{100 * summary.same_top:.2f} %"),
            ("perplexity", f"{summary.candidate_perplexity:.4f}"),
            ("of the reference", f"{summary.reference_perplexity:.4f}"),
            ("ratio", f"{summary.ratio:.6f}"),
            ("tokens", f"{summary.tokens} in {summary.windows} windows of {summary.n_ctx}, method {summary.method}"),
        ]
    )


def _write(path: Path, found: Comparison) -> None:
    rows = [msgspec.structs.astuple(token) for token in found.tokens()]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("window", "place", "token", "kl", "same_top", "reference_loss", "candidate_loss"))
            writer.writerows(rows)
    except OSError as error:
        raise WriteError(f"{path} cannot be written: {error}") from error
