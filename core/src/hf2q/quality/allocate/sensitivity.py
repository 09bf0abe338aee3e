"""The second pass: how much a loss counts, measured by what it does to the predictions over a text.

For each kind of tensor (the same in every block) a file is written in which tensors of this kind alone are quantized,
and its divergence from the source is measured. Small losses add up, so divergence over loss is what a loss counts in
tensors of the kind. Files are temporary, and one at a time beside that of the source.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hf2q.convert import convert
from hf2q.convert.importance import Importance
from hf2q.errors import QualityError, UsageError, WriteError
from hf2q.formats.imatrix import write_imatrix
from hf2q.formats.temporary import hint_for
from hf2q.plugins import Plugins
from hf2q.quality.allocate.types_file import pattern_for
from hf2q.quality.divergence import measure
from hf2q.quality.text import Corpus
from hf2q.serve.load import load
from hf2q.types import PolicyOptions, Record

FLOOR = 0.01
"""Of its weight without a text that a kind keeps at least: of a divergence near 0 more is noise than is not."""


class Trial(Record, frozen=True, kw_only=True):
    """A tensor to be tried.

    own     the type that it has when it is not quantized
    qtype   another, and `loss` in it;  weight  what a loss counts so far;  drafting  not part of predictions
    known   whether the importance of its columns is
    """

    name: str
    own: str
    qtype: str
    loss: float
    weight: float
    drafting: bool
    known: bool


class Text(Record, frozen=True, kw_only=True):
    """What predictions are compared over, `most` windows of `n_ctx` tokens or of what the model takes, and the folder
    for temporary files.
    """

    corpus: Corpus
    folder: Path
    n_ctx: int = 256
    most: int = 8


def kind_of(name: str) -> str:
    """The name of a tensor without numbers: the same in every block."""
    return re.sub(r"\d+", "*", name)


def measured_weights(
    source: str | os.PathLike[str] | None,
    tensors: Sequence[Trial],
    text: Text,
    *,
    repo: str | None,
    revision: str | None,
    via: str,
    pre: str | None,
    importance: Importance | None,
    allow_requantize: bool,
    threads: int | None,
    plugins: Plugins,
    report: Callable[[str, int, int], None] | None,
) -> dict[str, float]:
    """What a loss counts in each tensor, by name.

    In blocks that draft it counts as in others of the kind, in proportion to `Trial.weight`; where there are no others,
    and for kinds that lose nothing, it stays. Errors: what `convert`, `load` and `measure` raise; QualityError for
    predictions that are no numbers.
    """
    kinds: dict[str, list[Trial]] = {}
    for one in tensors:
        kinds.setdefault(kind_of(one.name), []).append(one)
    try:
        temporary = tempfile.TemporaryDirectory(prefix=".hf2q-auto-", dir=text.folder)
    except OSError as error:
        raise WriteError(f"{text.folder} cannot be written to: {error.strerror}", hint=hint_for(error)) from error
    found = {one.name: one.weight for one in tensors}
    with temporary as place:

        def made(origin: str | os.PathLike[str] | None, name: str, chosen: frozenset[str], **how: Any) -> Path:
            pairs = tuple((pattern_for(one.name), one.qtype if one.name in chosen else one.own) for one in tensors)
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
        whole = made(source, "source", frozenset(), repo=repo, revision=revision, via=via, pre=pre)
        with load(whole, threads=threads, exact=True, plugins=plugins) as reference:
            if reference.task != "generate":
                raise UsageError(
                    f"{source or repo} is an embedding model: it predicts no tokens", hint="leave the text out"
                )
            n_ctx = min(text.n_ctx, reference.context_length)
            for number, (kind, group) in enumerate(kinds.items()):
                if report is not None:
                    report(f"predictions without {kind}", number, len(kinds))
                counted = [one for one in group if not one.drafting]
                loss = sum(one.loss for one in counted)
                if not loss:
                    continue
                path = made(
                    whole,
                    "trial",
                    frozenset(one.name for one in counted),
                    imatrix=matrix if any(one.known for one in counted) else None,
                )
                with load(path, threads=threads, exact=True, plugins=plugins) as candidate:
                    mean = measure(reference, candidate, text.corpus, n_ctx=n_ctx, most=text.most).summary.mean
                if not 0 <= abs(mean) < float("inf"):
                    raise QualityError(f"the divergence with {kind} quantized is {mean}, expected a number")
                scale = max(FLOOR, mean / loss / counted[0].weight)
                found |= {one.name: one.weight * scale for one in group}
    return found
