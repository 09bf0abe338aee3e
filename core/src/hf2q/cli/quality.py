"""``hf2q quality``: whether a file is within the quality bounds of its family."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from hf2q.cli.measuring import Backend, Chunks, Exact, How, Resume, Threads, Windows, opened
from hf2q.cli.output import print_json, print_table
from hf2q.errors import ThresholdError, UsageError

if TYPE_CHECKING:
    from hf2q.quality.gates import Measured
    from hf2q.serve.model import Model


def command(
    file: Annotated[Path, Parameter(help="The GGUF file to judge; of several, the first.")],
    /,
    *,
    against: Annotated[
        Path, Parameter(help="A GGUF file of the same checkpoint: f32, or as little quantized as fits.")
    ],
    corpus: Annotated[
        str | None, Parameter(help="A text file, or the name of a text that comes with hf2q, instead of picking one.")
    ] = None,
    full_corpus: Annotated[
        Path | None,
        Parameter(help="WikiText-2, wikitext-2-raw-v1.zip or its wiki.test.raw: taken when valid, else a small ramp."),
    ] = None,
    n_ctx: Windows = 512,
    chunks: Chunks = None,
    method: How = "plain",
    record: Resume = None,
    backend: Backend = "auto",
    threads: Threads = None,
    exact: Exact = False,
    json: Annotated[bool, Parameter(help="Print JSON.")] = False,
) -> None:
    """Judge a file by the bounds of its family: perplexity ratio and median KL against a reference.

    Exit code 2 when one does not hold. A file of a family or of types without bounds passes and says so; so does one
    that was measured on the ramp alone, which is no language.
    """
    from hf2q.formats.gguf import open_model
    from hf2q.plugins import Plugins
    from hf2q.quality import gates

    if corpus is not None and full_corpus is not None:
        raise UsageError("--corpus and --full-corpus contradict each other", hint="leave one of them out")
    with open_model(file) as model:
        arch, mix = model.arch, gates.mix_of((tensor.name, tensor.qtype) for tensor in model.tensors.values())
    entry = Plugins.load().archs.get(arch)
    thresholds = entry.thresholds if entry is not None else None
    facts: dict[str, Any] = {}
    measured = gates.Measured()
    if not gates.unbounded(arch, thresholds, mix):
        with (
            opened(against, backend=backend, threads=threads, exact=True) as first,
            opened(file, backend=backend, threads=threads, exact=exact) as second,
        ):
            if corpus is None:
                measured, facts = _picked(first, second, full_corpus, n_ctx, chunks, method, record, json=json)
            else:
                from hf2q.quality.shipped import open_corpus

                text = open_corpus(corpus)
                measured, facts = _measured(first, second, text, n_ctx, chunks, method, record, json=json)
    verdict = gates.judge(arch, thresholds, mix, measured)
    told: dict[str, Any] = {"file": str(file), "against": str(against), "arch": arch, **msgspec.to_builtins(verdict)}
    if json:
        print_json({**told, "passed": verdict.passed, **facts})
    else:
        print_table(
            [
                ("family", arch),
                ("mix", verdict.mix or "none with a bound"),
                *((bound.label, f"at most {bound.most:g}") for bound in verdict.bounds),
                *((name.replace("_", " "), str(value)) for name, value in facts.items()),
                ("result", verdict.outcome + (f": {verdict.reason}" if verdict.reason else "")),
            ]
        )
    if not verdict.passed:
        raise ThresholdError(
            f"{file} is not within the bounds of {arch}: {'; '.join(verdict.violations)}",
            hint="an importance matrix or a larger mix loses less",
        )


def _picked(
    first: Model,
    second: Model,
    full: Path | None,
    n_ctx: int,
    chunks: int | None,
    method: Any,
    record: Path | None,
    *,
    json: bool,
) -> tuple[Measured, dict[str, Any]]:
    """Measure on the corpus that `pick` takes. On the ramp the figures are told, and not judged."""
    from hf2q.quality import pick
    from hf2q.quality.divergence import check_comparable
    from hf2q.quality.gates import Measured

    picked = pick.pick(first, full)
    choice = {"corpus": picked.name, "corpus_reason": picked.reason}
    if picked.corpus is not None:
        measured, facts = _measured(first, second, picked.corpus, n_ctx, chunks, method, record, json=json)
        return measured, {**facts, **choice}
    if chunks is not None or method != "plain" or record is not None:
        raise UsageError(
            f"--chunks, --method and --record cannot be followed on the ramp, which is taken since {picked.reason}",
            hint="--corpus FILE names a text, --full-corpus FILE the whole of WikiText-2",
        )
    check_comparable(first, second)
    ratio, median = pick.measure_ids(first, second, pick.ramp(), n_ctx=n_ctx)
    return Measured(skipped=pick.NO_LANGUAGE), {"ppl_ratio": ratio, "median_kl": median, **choice}


def _measured(
    first: Model,
    second: Model,
    text: Any,
    n_ctx: int,
    chunks: int | None,
    method: Any,
    record: Path | None,
    *,
    json: bool,
) -> tuple[Measured, dict[str, Any]]:
    from hf2q.cli.progress import bar
    from hf2q.quality.divergence import measure
    from hf2q.quality.gates import Measured

    with bar(shown=not json) as report:
        run = measure(first, second, text, n_ctx=n_ctx, method=method, most=chunks, record=record, report=report)
    found = run.summary
    facts = {
        "ppl_ratio": found.ratio,
        "median_kl": found.median,
        "tokens": found.tokens,
        "corpus": found.corpus,
        "corpus_sha256": found.corpus_sha256,
    }
    return Measured(ppl_ratio=found.ratio, median_kl=found.median), facts
