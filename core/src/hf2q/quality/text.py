"""A corpus as windows of tokens, and which of their tokens count.

Two conventions, whose numbers must not be compared with each other:

    plain   windows follow one another, and every token but the first of each counts
    llama   as llama-perplexity: the first token of each window is replaced by BOS where the model wants one, and of the
            predictions those of the second half count (llama.cpp, tools/perplexity/perplexity.cpp, `perplexity`)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hf2q.errors import MissingFileError, QualityError, SourceError
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.serve.model import Model

Method = Literal["plain", "llama"]
METHODS: tuple[Method, ...] = ("plain", "llama")
N_CTX = 512


class Corpus(Record, frozen=True, kw_only=True):
    """A text, and what tells it from others."""

    name: str
    text: str
    sha256: str


class Window(Record, frozen=True, kw_only=True):
    """Token ids to feed, and from which prediction on they count: that after the `first`-th token is the earliest."""

    ids: tuple[int, ...]
    first: int

    @property
    def targets(self) -> tuple[int, ...]:
        """The tokens that are to be predicted."""
        return self.ids[self.first + 1 :]


def read_corpus(path: Path) -> Corpus:
    """A text file. Errors: MissingFileError, SourceError for what is no UTF-8 text."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise MissingFileError(f"there is no file {path}") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 text: {error}") from error
    return Corpus(name=path.name, text=text, sha256=hashlib.sha256(data).hexdigest())


def windows(
    corpus: Corpus, model: Model, *, n_ctx: int = N_CTX, method: Method = "plain", most: int | None = None
) -> tuple[Window, ...]:
    """The windows of a corpus for a model, `most` of them at most.

    Errors: QualityError for a corpus that is too short, with both numbers, and for windows that the model's context
    does not hold.
    """
    if n_ctx < 2:
        raise QualityError(f"windows of {n_ctx} tokens have nothing to predict, expected at least 2")
    if n_ctx > model.context_length:
        raise QualityError(
            f"windows of {n_ctx} tokens do not fit the model's context of {model.context_length}",
            hint=f"--n-ctx {model.context_length}",
        )
    tokenizer = model.tokenizer
    ids = tokenizer.encode(corpus.text, add_bos=method == "llama" and tokenizer.add_bos)
    bos = tokenizer.bos_id if method == "llama" and tokenizer.add_bos else None
    found = _cut(ids, n_ctx, whole=method == "llama")
    if not found:
        need = 2 * n_ctx if method == "llama" else 2
        raise QualityError(
            f"{corpus.name} has {len(ids)} tokens for this model, expected at least {need}",
            hint="a longer text, or smaller windows (--n-ctx)",
        )
    first = n_ctx // 2 if method == "llama" else 0
    kept = found if most is None else found[:most]
    return tuple(Window(ids=tuple(ids if bos is None else (bos, *ids[1:])), first=first) for ids in kept)


def _cut(ids: Sequence[int], size: int, *, whole: bool) -> list[Sequence[int]]:
    """Pieces of `size`; the last may be shorter unless they must be `whole`, and then there are at least two."""
    pieces = [ids[start : start + size] for start in range(0, len(ids), size)]
    if whole:
        return [piece for piece in pieces if len(piece) == size] if len(ids) >= 2 * size else []
    return [piece for piece in pieces if len(piece) > 1]
