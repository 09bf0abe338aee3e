"""Measures of logits and vectors: float32 in, float64 arithmetic. NaN and infinity are errors.

Source of the definitions: llama.cpp, tools/perplexity/perplexity.cpp (`log_softmax`,
`kl_divergence`), whose Kullback-Leibler divergence is over all tokens of the vocabulary without any clamping, as here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hf2q.errors import QualityError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.types import Float32

    Float64 = NDArray[np.float64]


def log_softmax(logits: Float32) -> Float64:
    """Natural logarithms of probabilities (..., V). Errors: QualityError for numbers that are not finite."""
    wide: Float64 = checked(logits, "logits").astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide


def losses(log_probabilities: Float64, targets: NDArray[np.int64]) -> Float64:
    """Negative log probabilities (T,) in nats of `targets` (T,), by log probabilities (T, V).

    Errors: QualityError for a target outside the vocabulary.
    """
    vocabulary = log_probabilities.shape[-1]
    if targets.size and not 0 <= targets.min() <= targets.max() < vocabulary:
        wrong = targets.max() if targets.max() >= vocabulary else targets.min()
        raise QualityError(f"token {wrong} is outside the vocabulary of {vocabulary}")
    found: Float64 = np.take_along_axis(log_probabilities, targets[:, None], -1)[:, 0]
    found *= -1.0
    return found


def divergences(reference: Float64, candidate: Float64) -> Float64:
    """Kullback-Leibler divergences (T,) in nats of log probabilities (T, V): from `reference`, at least 0."""
    if reference.shape != candidate.shape:
        raise QualityError(f"predictions of shapes {reference.shape} and {candidate.shape} cannot be compared")
    found: Float64 = (np.exp(reference) * (reference - candidate)).sum(-1)
    return found.clip(0.0)


def cosine(a: Float32, b: Float32) -> float:
    """The cosine between two vectors, -1 to 1. Errors: QualityError for other lengths, and for a vector of length 0."""
    if a.shape != b.shape or not a.size:
        raise QualityError(f"vectors of shapes {a.shape} and {b.shape} have no cosine")
    x, y = checked(a, "a vector").astype(np.float64).ravel(), checked(b, "a vector").astype(np.float64).ravel()
    norms = float(np.sqrt((x @ x) * (y @ y)))
    if norms < 1e-24:
        raise QualityError("a vector of zeros has no direction, so no cosine")
    return float(np.clip((x @ y) / norms, -1.0, 1.0))


def checked(values: Any, what: str) -> Any:
    """`values`, which are finite. Errors: QualityError naming the first that is not, and where it is."""
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        place = np.unravel_index(int(wrong[0]), values.shape)
        raise QualityError(
            f"{what} hold {values[place]} at {tuple(int(i) for i in place)} ({wrong.size} such numbers), expected "
            "finite ones",
            hint="the file is damaged, or its numbers overflow: convert or download it again",
        )
    return values
