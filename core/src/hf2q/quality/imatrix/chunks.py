"""A corpus as chunks of tokens, as llama-imatrix cuts it (tools/imatrix/imatrix.cpp, `compute_imatrix`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hf2q.errors import QualityError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf2q.formats.tokenizer import Tokenizer
    from hf2q.quality.text import Corpus

LEAST = 16
"""Tokens of a chunk: products of fewer rows are not counted by llama-imatrix (`collect_imatrix`)."""


class CorpusTooShortError(QualityError):
    """A text of too few tokens: `tokens` are there, `needed` would be enough."""

    def __init__(self, name: str, tokens: int, needed: int) -> None:
        super().__init__(
            f"{name} has {tokens} tokens for this model, expected at least {needed}",
            hint="a longer text, or shorter chunks (--n-ctx)",
        )
        self.tokens, self.needed = tokens, needed


def chunks(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    n_ctx: int,
    context_length: int,
    skip: int = 0,
    most: int | None = None,
) -> NDArray[np.int32]:
    """Token ids (N, n_ctx): the text is tokenized once and cut; what is left at the end is dropped.

    The first token of each chunk is BOS where the model wants one. Control tokens that are spelled out in the text are
    read as text. `skip` chunks are left out at the beginning; `most` is how many there are then at most.

    Errors: QualityError for chunks of fewer than `LEAST` tokens and of more than the context holds;
    CorpusTooShortError when two chunks cannot be filled.
    """
    if not LEAST <= n_ctx <= context_length:
        raise QualityError(
            f"chunks of {n_ctx} tokens were asked for, expected {LEAST} to {context_length}, the model's context",
            hint=f"--n-ctx {min(max(n_ctx, LEAST), context_length)}",
        )
    ids = np.array(tokenizer.encode(corpus.text, special=False), np.int32)
    needed = (skip + 2) * n_ctx
    if len(ids) < needed:
        raise CorpusTooShortError(corpus.name, len(ids), needed)
    found = ids[: len(ids) // n_ctx * n_ctx].reshape(-1, n_ctx)[skip:][:most].copy()
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        found[:, 0] = tokenizer.bos_id
    return found
