"""What a model predicts over a window, in pieces: logits of a large vocabulary are too many to hold all at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hf2q.errors import QualityError
from hf2q.quality.metrics import log_softmax

if TYPE_CHECKING:
    from hf2q.quality.metrics import Float64
    from hf2q.quality.text import Window
    from hf2q.serve.model import Model

HELD = 1 << 24
"""Logits at a time."""


def piece_length(n_vocab: int) -> int:
    """Tokens to feed at a time."""
    return max(8, min(512, HELD // n_vocab))


def predictions(model: Model, window: Window) -> Iterator[tuple[int, Float64]]:
    """Pairs (place, log probabilities (T, V)) in order: the predictions after tokens `place`, `place` + 1 … of the
    window, those that count.

    Errors: QualityError for logits that are not finite.
    """
    sequence, step = model.sequence(), piece_length(model.n_vocab)
    end = len(window.ids) - 1  # the last token's prediction has nothing to be compared with
    if window.first:
        for start in range(0, window.first, 512):
            sequence.prefill(window.ids[start : min(start + 512, window.first)])
    for start in range(window.first, end, step):
        logits = sequence.all_logits(window.ids[start : min(start + step, end)])
        try:
            yield start, log_softmax(logits)
        except QualityError as error:
            raise QualityError(
                f"{model.path}, after token {start} of a window: {error.message}", hint=error.hint
            ) from error
