"""Which text a quality gate measures on: the test set of WikiText-2 where it is there and whole, else a small ramp.

The ramp is 512 token ids that a formula makes. It is no language: it proves that measuring works, and nothing about
quality, so a gate must not judge by it.
"""

from __future__ import annotations

import hashlib
import logging
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf2q.errors import MissingFileError, QualityError, SourceError
from hf2q.formats.digest import digest_file
from hf2q.quality.metrics import divergences, losses
from hf2q.quality.predictions import predictions
from hf2q.quality.text import Corpus, Window
from hf2q.types import Record

if TYPE_CHECKING:
    from hf2q.serve.model import Model

log = logging.getLogger(__name__)

ARCHIVE_SHA256 = "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11"
"""Of wikitext-2-raw-v1.zip."""
MEMBER = "wikitext-2-raw/wiki.test.raw"
LEAST_TOKENS = 280_000
LEAST_BYTES = 1 << 20

RAMP_TOKENS = 512
NO_LANGUAGE = "the ramp is no language, so quality cannot be judged by it"


class Picked(Record, frozen=True, kw_only=True):
    """What to measure on.

    corpus  the whole text, or None: then it is the ramp
    reason  why this and not the other
    """

    corpus: Corpus | None
    reason: str

    @property
    def name(self) -> str:
        """``full`` or ``ramp``."""
        return "ramp" if self.corpus is None else "full"


def ramp() -> tuple[int, ...]:
    """The token ids of the small corpus: (17 i + 3) mod 32000 for i below 512."""
    return tuple((17 * i + 3) % 32_000 for i in range(RAMP_TOKENS))


def pick(model: Model, full: Path | None) -> Picked:
    """The whole corpus if `full` is valid for `model`, else the ramp; the choice is logged.

    full  the archive, known by its SHA-256, or the text in it as a file; None for none
    """
    try:
        picked = Picked(corpus=_valid(model, full), reason=f"{full} is valid")
    except (SourceError, QualityError) as error:
        picked = Picked(corpus=None, reason=error.message)
    log.warning("corpus: %s (%s)", picked.name, picked.reason)
    return picked


def _valid(model: Model, path: Path | None) -> Corpus:
    """Errors: SourceError, QualityError saying what is wrong."""
    if path is None:
        raise MissingFileError("no full corpus was named")
    data = _member(path) if path.suffix == ".zip" else _read(path)
    if len(data) < LEAST_BYTES:
        raise QualityError(f"{path} has {len(data):,} bytes of text, expected at least {LEAST_BYTES:,}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 text: {error}") from error
    tokens = len(model.tokenizer.encode(text, add_bos=False))
    if tokens < LEAST_TOKENS:
        raise QualityError(f"{path} has {tokens:,} tokens for this model, expected at least {LEAST_TOKENS:,}")
    return Corpus(name=path.name, text=text, sha256=hashlib.sha256(data).hexdigest())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingFileError(f"{path} cannot be read: {error.strerror}") from error


def _member(path: Path) -> bytes:
    found = digest_file(path).sha256
    if found != ARCHIVE_SHA256:
        raise SourceError(f"{path} has the SHA-256 {found}, expected {ARCHIVE_SHA256}")
    with zipfile.ZipFile(path) as archive:
        return archive.read(MEMBER)


def measure_ids(reference: Model, candidate: Model, ids: tuple[int, ...], *, n_ctx: int) -> tuple[float, float]:
    """Perplexity ratio and median KL (nats) over token ids, in windows of `n_ctx` as those of a text.

    Errors: QualityError for ids outside the vocabulary, and as `predictions`.
    """
    if ids and max(ids) >= reference.n_vocab:
        raise QualityError(
            f"the ramp has token {max(ids)}, which is outside the vocabulary of {reference.n_vocab}",
            hint="--corpus FILE names a text",
        )
    kl: list[float] = []
    gap: list[float] = []
    size = min(n_ctx, reference.context_length, candidate.context_length)
    for start in range(0, len(ids) - 1, size):
        window = Window(ids=ids[start : start + size], first=0)
        whole = np.array(window.ids, np.int64)
        for (place, p), (_, q) in zip(predictions(reference, window), predictions(candidate, window), strict=True):
            targets = whole[place + 1 : place + 1 + len(p)]
            kl += divergences(p, q).tolist()
            gap += (losses(q, targets) - losses(p, targets)).tolist()
    return float(np.exp(np.mean(gap))), float(np.median(kl))
