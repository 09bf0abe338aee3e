"""The report as plain data: facts, weights and predictions of every file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q import __version__
from hf2q.plugins import Plugins
from hf2q.quality import divergence
from hf2q.quality.divergence import Comparison, Divergence
from hf2q.quality.perplexity import Report as Progress
from hf2q.quality.report.facts import Facts, as_data, gather
from hf2q.quality.similarity import Similarity, compare
from hf2q.quality.text import Corpus, Method
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.serve.model import Model

QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
LOWEST, HIGHEST, PER_DECADE = -9, 2, 4
"""The histogram counts by the decimal logarithm of the divergence; what is beyond counts in the outermost bins."""


class Run(Record, frozen=True, kw_only=True):
    """How predictions are measured; see `hf2q.quality.divergence.measure`.

    opened  loads a file; the second argument says whether activations must be float32
    record  a folder that keeps the results of windows, a file for each file that is measured
    """

    opened: Callable[[Path, bool], AbstractContextManager[Model]]
    corpus: Corpus
    n_ctx: int
    method: Method
    most: int | None = None
    exact: bool = False
    record: Path | None = None


class Predictions(Record, frozen=True, kw_only=True):
    """How far predictions are from the reference's.

    quantiles  of the divergence of a token, (share of tokens, nats)
    histogram  tokens by divergence: (lower bound, upper bound, tokens), in nats, from the first bin used to the last;
               the first holds what is smaller too
    """

    summary: Divergence
    backend: str
    quantiles: tuple[tuple[float, float], ...]
    histogram: tuple[tuple[float, float, int], ...]


class FileReport(Record, frozen=True, kw_only=True):
    """One file. `label` is its name, with a number where two have the same."""

    label: str
    facts: Facts
    weights: Similarity
    predictions: Predictions | None


class Report(Record, frozen=True, kw_only=True):
    """All of it; `version` is that of hf2q."""

    version: str
    reference: Facts
    files: tuple[FileReport, ...]

    @property
    def measured(self) -> Divergence | None:
        """How predictions were measured, None when they were not."""
        first = self.files[0].predictions
        return None if first is None else first.summary


def make_report(
    files: Sequence[Path],
    against: Path,
    *,
    run: Run | None = None,
    runnable: Path | None = None,
    threads: int | None = None,
    plugins: Plugins | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measure each of `files` against a GGUF file or a checkpoint's directory.

    run       how predictions are measured; None when they are not
    runnable  a GGUF file that predicts as the reference; default `against`
    Errors: those of `similarity.compare`, `divergence.measure` and `facts.gather`.
    """
    plugins = Plugins.load() if plugins is None else plugins
    reference = gather(against, progress)
    labels = _labels(files)
    facts = [gather(path, progress) for path in files]
    weights = [compare(path, against, threads=threads, plugins=plugins, report=progress) for path in files]
    found: list[Predictions | None] = [None] * len(files)
    if run is not None:
        with run.opened(runnable or against, True) as model:
            for number, path in enumerate(files):
                found[number] = _predictions(model, path, labels[number], run, progress)
    parts = zip(labels, facts, weights, found, strict=True)
    return Report(
        version=__version__,
        reference=reference,
        files=tuple(FileReport(label=a, facts=b, weights=c, predictions=d) for a, b, c, d in parts),
    )


def _predictions(model: Model, path: Path, label: str, run: Run, progress: Progress | None) -> Predictions:
    def report(what: str, done: int, total: int) -> None:
        if progress is not None:
            progress(f"{label}, {what}", done, total)

    with run.opened(path, run.exact) as candidate:
        comparison = divergence.measure(
            model,
            candidate,
            run.corpus,
            n_ctx=run.n_ctx,
            method=run.method,
            most=run.most,
            record=None if run.record is None else run.record / f"{label}.jsonl",
            report=report,
        )
        return summarised(comparison, candidate.backend)


def summarised(comparison: Comparison, backend: str) -> Predictions:
    """What a report keeps of a comparison."""
    kl = np.array([value for result in comparison.results for value in result.kl], np.float64)
    levels = np.quantile(kl, QUANTILES)
    bins = (HIGHEST - LOWEST) * PER_DECADE
    with np.errstate(divide="ignore"):
        places = np.floor((np.log10(kl) - LOWEST) * PER_DECADE).clip(0, bins - 1).astype(np.int64)
    counts = np.bincount(places, minlength=bins)
    used = np.flatnonzero(counts)
    bounds = [10.0 ** (LOWEST + place / PER_DECADE) for place in range(bins + 1)]
    return Predictions(
        summary=comparison.summary,
        backend=backend,
        quantiles=tuple((share, float(level)) for share, level in zip(QUANTILES, levels, strict=True)),
        histogram=tuple(
            (bounds[place], bounds[place + 1], int(counts[place])) for place in range(used[0], used[-1] + 1)
        ),
    )


def _labels(files: Sequence[Path]) -> list[str]:
    found: list[str] = []
    for path in files:
        label, number = path.name, 1
        while label in found:
            number += 1
            label = f"{path.name} ({number})"
        found.append(label)
    return found


def report_data(report: Report) -> dict[str, Any]:
    """Ready for JSON."""
    import msgspec

    return {
        "version": report.version,
        "reference": as_data(report.reference),
        "files": [
            {
                "label": file.label,
                "facts": as_data(file.facts),
                "weights": msgspec.to_builtins(file.weights),
                "predictions": msgspec.to_builtins(file.predictions),
            }
            for file in report.files
        ],
    }
