"""Perplexity: how surprised a model is by a text, as a number of tokens among which it might as well choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf2q.quality.identity import identity
from hf2q.quality.metrics import losses
from hf2q.quality.predictions import predictions
from hf2q.quality.record import Recorded
from hf2q.quality.text import Corpus, Method, Window, windows
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.serve.model import Model

Report = Callable[[str, int, int], None]
"""Told what is at work, how much is done and how much there is."""


class WindowLoss(Record, frozen=True, kw_only=True):
    """Of one window: how many tokens counted, the sum of their losses in nats, and of the squares of these."""

    tokens: int
    total: float
    squares: float


class Perplexity(Record, frozen=True, kw_only=True):
    """The perplexity of a text, its standard error, and what it was computed from.

    loss     mean negative log probability of a token, nats
    windows  of `n_ctx` tokens at most
    """

    perplexity: float
    error: float
    loss: float
    tokens: int
    windows: int
    n_ctx: int
    method: Method
    corpus: str
    corpus_sha256: str


def measure(
    model: Model,
    corpus: Corpus,
    *,
    n_ctx: int,
    method: Method = "plain",
    most: int | None = None,
    record: Path | None = None,
    report: Report | None = None,
) -> Perplexity:
    """The perplexity of `corpus`.

    most    windows at most;  record  a file that keeps the result of each window, see `hf2q.quality.record`
    Errors: QualityError for a corpus that is too short, for logits that are not finite, and for another's record.
    """
    cut = windows(corpus, model, n_ctx=n_ctx, method=method, most=most)
    key = {
        "measurement": "perplexity",
        "model": model.path.name,
        "sha256": identity(model, record),
        "backend": model.backend,
        "corpus": corpus.sha256,
        "n_ctx": n_ctx,
        "method": method,
    }
    with Recorded(record, key, WindowLoss) as kept:
        for number in range(len(kept.results), len(cut)):
            if report is not None:
                report(f"window {number + 1} of {len(cut)}", number, len(cut))
            kept.add(_window(model, cut[number]))
        results = kept.results[: len(cut)]
    return _pooled(results, corpus, n_ctx, method)


def _window(model: Model, window: Window) -> WindowLoss:
    ids = np.array(window.ids, np.int64)
    found = [losses(p, ids[place + 1 : place + 1 + len(p)]) for place, p in predictions(model, window)]
    each = np.concatenate(found)
    return WindowLoss(tokens=len(each), total=float(each.sum()), squares=float((each * each).sum()))


def _pooled(results: Sequence[WindowLoss], corpus: Corpus, n_ctx: int, method: Method) -> Perplexity:
    tokens = sum(result.tokens for result in results)
    mean = math.fsum(result.total for result in results) / tokens
    variance = max(0.0, math.fsum(result.squares for result in results) / tokens - mean * mean)
    perplexity = math.exp(mean)
    return Perplexity(
        perplexity=perplexity,
        error=perplexity * math.sqrt(variance / max(1, tokens - 1)),
        loss=mean,
        tokens=tokens,
        windows=len(results),
        n_ctx=n_ctx,
        method=method,
        corpus=corpus.name,
        corpus_sha256=corpus.sha256,
    )
