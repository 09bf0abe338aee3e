"""How far the predictions of a candidate are from those of a reference, token by token over a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.errors import QualityError
from hf2q.quality.identity import identity
from hf2q.quality.metrics import divergences, losses
from hf2q.quality.perplexity import Report
from hf2q.quality.predictions import predictions
from hf2q.quality.record import Recorded
from hf2q.quality.text import Corpus, Method, Window, windows
from hf2q.types import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.serve.model import Model


class WindowDivergence(Record, frozen=True, kw_only=True):
    """Of one window, for each token that counted: KL in nats, whether the likeliest token is the same, and the losses
    of both models in nats.
    """

    kl: tuple[float, ...]
    same_top: tuple[bool, ...]
    reference_loss: tuple[float, ...]
    candidate_loss: tuple[float, ...]


class Divergence(Record, frozen=True, kw_only=True):
    """The Kullback-Leibler divergence of a candidate from a reference over a text, in nats, and what goes with it.

    mean_error      standard error of the mean;  p99, maximum  of all tokens
    same_top        share of tokens where both find the same token likeliest
    *_perplexity    of both models over the same tokens;  ratio  the candidate's over the reference's
    """

    mean: float
    mean_error: float
    median: float
    p99: float
    maximum: float
    same_top: float
    reference_perplexity: float
    candidate_perplexity: float
    ratio: float
    tokens: int
    windows: int
    n_ctx: int
    method: Method
    corpus: str
    corpus_sha256: str


class TokenDivergence(Record, frozen=True, kw_only=True):
    """One token of the text: its window, its place there, its id, and the results."""

    window: int
    place: int
    token: int
    kl: float
    same_top: bool
    reference_loss: float
    candidate_loss: float


class Comparison(Record, frozen=True, kw_only=True):
    """The results of all windows."""

    summary: Divergence
    cut: tuple[Window, ...]
    results: tuple[WindowDivergence, ...]

    def tokens(self) -> Iterator[TokenDivergence]:
        """Every token that counted, in order."""
        for number, (window, found) in enumerate(zip(self.cut, self.results, strict=True)):
            rows = zip(
                window.targets, found.kl, found.same_top, found.reference_loss, found.candidate_loss, strict=True
            )
            for place, (token, kl, same, reference, candidate) in enumerate(rows, window.first + 1):
                yield TokenDivergence(
                    window=number,
                    place=place,
                    token=token,
                    kl=kl,
                    same_top=same,
                    reference_loss=reference,
                    candidate_loss=candidate,
                )


def check_comparable(reference: Model, candidate: Model) -> None:
    """Errors: QualityError when the two do not have the same vocabulary, naming the first token that differs."""
    if reference.n_vocab != candidate.n_vocab:
        raise QualityError(
            f"{reference.path} has a vocabulary of {reference.n_vocab} tokens, {candidate.path} one of "
            f"{candidate.n_vocab}: their predictions cannot be compared",
            hint="compare a file with another that was made from the same checkpoint",
        )
    ours, theirs = (model.metadata.get("tokenizer.ggml.tokens", ()) for model in (reference, candidate))
    wrong = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if wrong is not None:
        raise QualityError(
            f"token {wrong} is {ours[wrong]!r:.60} in {reference.path} and {theirs[wrong]!r:.60} in {candidate.path}: "
            "these are different vocabularies",
            hint="compare a file with another that was made from the same checkpoint",
        )


def measure(
    reference: Model,
    candidate: Model,
    corpus: Corpus,
    *,
    n_ctx: int,
    method: Method = "plain",
    most: int | None = None,
    record: Path | None = None,
    report: Report | None = None,
) -> Comparison:
    """How far `candidate` is from `reference` over `corpus`; parameters and errors as `perplexity.measure`.

    Errors also: QualityError for models of different vocabularies.
    """
    check_comparable(reference, candidate)
    cut = windows(corpus, reference, n_ctx=n_ctx, method=method, most=most)
    key: dict[str, Any] = {
        "measurement": "divergence",
        "reference": [reference.path.name, identity(reference, record), reference.backend],
        "candidate": [candidate.path.name, identity(candidate, record), candidate.backend],
        "corpus": corpus.sha256,
        "n_ctx": n_ctx,
        "method": method,
    }
    with Recorded(record, key, WindowDivergence) as kept:
        for number in range(len(kept.results), len(cut)):
            if report is not None:
                report(f"window {number + 1} of {len(cut)}", number, len(cut))
            kept.add(_window(reference, candidate, cut[number]))
        results = tuple(kept.results[: len(cut)])
    return Comparison(summary=_pooled(results, corpus, n_ctx, method), cut=cut, results=results)


def _window(reference: Model, candidate: Model, window: Window) -> WindowDivergence:
    ids = np.array(window.ids, np.int64)
    kl: list[float] = []
    same: list[bool] = []
    ours: list[float] = []
    theirs: list[float] = []
    for (place, p), (_, q) in zip(predictions(reference, window), predictions(candidate, window), strict=True):
        targets = ids[place + 1 : place + 1 + len(p)]
        kl += divergences(p, q).tolist()
        same += (p.argmax(-1) == q.argmax(-1)).tolist()
        ours += losses(p, targets).tolist()
        theirs += losses(q, targets).tolist()
    return WindowDivergence(
        kl=tuple(kl), same_top=tuple(same), reference_loss=tuple(ours), candidate_loss=tuple(theirs)
    )


def _pooled(results: Sequence[WindowDivergence], corpus: Corpus, n_ctx: int, method: Method) -> Divergence:
    def joined(name: str) -> NDArray[np.float64]:
        return np.concatenate([np.array(getattr(result, name), np.float64) for result in results])

    kl = joined("kl")
    reference, candidate = float(joined("reference_loss").mean()), float(joined("candidate_loss").mean())
    return Divergence(
        mean=float(kl.mean()),
        mean_error=float(kl.std() / max(1, len(kl) - 1) ** 0.5),
        median=float(np.median(kl)),
        p99=float(np.quantile(kl, 0.99)),
        maximum=float(kl.max()),
        same_top=float(joined("same_top").mean()),
        reference_perplexity=float(np.exp(reference)),
        candidate_perplexity=float(np.exp(candidate)),
        ratio=float(np.exp(candidate - reference)),
        tokens=len(kl),
        windows=len(results),
        n_ctx=n_ctx,
        method=method,
        corpus=corpus.name,
        corpus_sha256=corpus.sha256,
    )
