"""The second pass, with a text: what a loss counts, and which of several choices is best, by what predictions say.

Each group of tensors (`hf2q.quality.allocate.fit`) is quantized alone, and the divergence from the source is measured.
Small losses add up, so divergence over loss is what a loss counts. Files are temporary, and one at a time beside that
of the source.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf2q.convert import convert
from hf2q.convert.importance import Importance
from hf2q.errors import QualityError, UsageError, WriteError
from hf2q.formats.imatrix import write_imatrix
from hf2q.formats.temporary import hint_for
from hf2q.plugins import Plugins
from hf2q.quality.allocate.fit import Trial, fitted, grouped
from hf2q.quality.allocate.types_file import pattern_for
from hf2q.quality.divergence import measure
from hf2q.quality.text import Corpus
from hf2q.serve.load import load
from hf2q.types import PolicyOptions, Record

Types = Mapping[str, str]
Diverge = Callable[[str, Types], float]
"""Called with a name for what is tried, for errors, and the types of the tensors that are quantized."""


class Text(Record, frozen=True, kw_only=True):
    """What predictions are compared over, `most` windows of `n_ctx` tokens or of what the model takes, and the folder
    for temporary files.
    """

    corpus: Corpus
    folder: Path
    n_ctx: int = 256
    most: int = 8


@contextmanager
def compared(
    source: str | os.PathLike[str] | None,
    own: Types,
    text: Text,
    *,
    repo: str | None,
    revision: str | None,
    via: str,
    pre: str | None,
    importance: Importance | None,
    known: Set[str],
    allow_requantize: bool,
    threads: int | None,
    plugins: Plugins,
) -> Iterator[Diverge]:
    """Gives a function that quantizes some tensors and says how far predictions move, in nats for each token.

    own    the types of the tensors that may be, when they are not quantized
    known  which of them `importance` knows

    Errors: what `convert`, `load` and `measure` raise; UsageError for a model that predicts no tokens; QualityError for
    predictions that are no numbers.
    """
    try:
        temporary = tempfile.TemporaryDirectory(prefix=".hf2q-auto-", dir=text.folder)
    except OSError as error:
        raise WriteError(f"{text.folder} cannot be written to: {error.strerror}", hint=hint_for(error)) from error
    with temporary as place:

        def made(origin: str | os.PathLike[str] | None, name: str, types: Types, **how: Any) -> Path:
            pairs = tuple((pattern_for(tensor), types.get(tensor, qtype)) for tensor, qtype in own.items())
            summary = convert(
                origin,
                "q8_0",
                Path(place) / f"{name}.gguf",
                options=PolicyOptions(tensor_types=pairs),
                allow_requantize=allow_requantize,
                threads=threads,
                force=True,
                provenance=False,
                sidecars=False,
                receipt=False,
                plugins=plugins,
                **how,
            )
            return Path(summary.output)

        matrix = None
        if importance is not None:
            matrix = Path(place) / "imatrix.gguf"
            write_imatrix(matrix, importance.imatrix, "gguf")
        whole = made(source, "source", {}, repo=repo, revision=revision, via=via, pre=pre)
        with load(whole, threads=threads, exact=True, plugins=plugins) as reference:
            if reference.task != "generate":
                raise UsageError(
                    f"{source or repo} is an embedding model: it predicts no tokens", hint="leave the text out"
                )
            n_ctx = min(text.n_ctx, reference.context_length)

            def diverge(what: str, types: Types) -> float:
                path = made(whole, "trial", types, imatrix=matrix if known & types.keys() else None)
                with load(path, threads=threads, exact=True, plugins=plugins) as candidate:
                    mean = measure(reference, candidate, text.corpus, n_ctx=n_ctx, most=text.most).summary.mean
                if not 0 <= abs(mean) < float("inf"):
                    raise QualityError(f"the divergence with {what} quantized is {mean}, expected a number")
                return mean

            yield diverge


def measured_weights(
    tensors: Sequence[Trial], diverge: Diverge, report: Callable[[str, int, int], None] | None
) -> dict[str, float]:
    """What a loss counts in each tensor, by name; see `fitted`. Errors: as `compared`."""
    groups = grouped(tensors)
    means: dict[str, float] = {}
    for number, (what, members) in enumerate(groups.items()):
        if report is not None:
            report(f"predictions without {what}", number, len(groups))
        if any(one.loss for one in members):
            means[what] = diverge(what, {one.name: one.qtype for one in members})
    return fitted(tensors, groups, means)
