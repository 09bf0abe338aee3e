"""The report as a Markdown model card, with the header that the Hub reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from hf2q.quality.report.facts import Facts
from hf2q.quality.report.markup import clean
from hf2q.quality.report.measure import Report
from hf2q.quality.report.numbers import bits, cosine, nats, percent, size

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$-])")


def markdown_card(report: Report) -> str:
    """The card."""
    return "\n".join([*_header(report), *_files(report), *_how(report), *_use(report), *_made(report), ""])


def plain(text: str) -> str:
    """Text of a file as Markdown that shows it as it is: on one line, and nothing in it is markup."""
    return _SPECIAL.sub(r"\\\1", clean(text))


def code(text: str) -> str:
    """Text of a file as code; backticks, which would end it, become apostrophes, and bars, which end a cell, too."""
    return f"`{clean(text).replace('`', chr(39)).replace('|', chr(39))}`"


def _header(report: Report) -> Iterator[str]:
    yield "---"
    bases = {file.facts.base_model for file in report.files}
    if len(bases) == 1 and (base := bases.pop()):
        yield f"base_model: {json.dumps(base)}"
        yield "base_model_relation: quantized"
    licences = {value for file in report.files for key, value in file.facts.keys if key == "general.license"}
    if len(licences) == 1:
        yield f"license: {json.dumps(licences.pop())}"
    yield "tags:"
    yield "- gguf"
    yield "---"
    yield ""
    yield f"# {plain(_name(report))}, quantized"
    yield ""


def _name(report: Report) -> str:
    for file in report.files:
        for key, value in file.facts.keys:
            if key == "general.name" and value:
                return value
    return report.reference.name


def _files(report: Report) -> Iterator[str]:
    measured = report.measured
    header = ["file", "types", "size", "bits per weight", "relative error", "smallest cosine"]
    if measured is not None:
        header += ["mean KL", "median", "99 %", "maximum", "same top token", "perplexity ratio"]
    yield f"What each file loses against {code(report.reference.name)}:"
    yield ""
    yield _line(header)
    yield _line(["---"] * 2 + ["---:"] * (len(header) - 2))
    for file in report.files:
        total, facts = file.weights.total, file.facts
        row = [code(file.label), ", ".join(total.qtype for total in facts.types), size(facts.size)]
        row += [bits(facts.bits_per_weight), percent(total.relative_error), cosine(total.minimum)]
        if file.predictions is not None:
            found = file.predictions.summary
            row += [nats(value) for value in (found.mean, found.median, found.p99, found.maximum)]
            row += [percent(found.same_top, 2), f"{found.ratio:.4f}"]
        yield _line(row)
    yield ""


def _how(report: Report) -> Iterator[str]:
    yield "## How it was measured"
    yield ""
    yield (
        f"By hf2q {report.version}. Relative error: of a tensor, the root mean square of the differences of decoded "
        "weights over that of the reference; of a file, the root mean square of those, by number of weights. Smallest "
        "cosine: of any tensor with the reference's."
    )
    measured = report.measured
    if measured is not None:
        yield ""
        yield (
            f"KL: Kullback-Leibler divergence of predictions from the reference's, in nats, over "
            f"{code(measured.corpus)} ({measured.tokens:,} tokens in {measured.windows} windows of {measured.n_ctx}, "
            f"method {measured.method}, SHA-256 `{measured.corpus_sha256}`); the reference has a perplexity of "
            f"{measured.reference_perplexity:.4f}."
        )
    yield ""


def _use(report: Report) -> Iterator[str]:
    first = report.files[0].facts
    if first.arch in (None, "clip"):
        return
    name = first.name if re.fullmatch(r"[\w.][\w.-]*", first.name, re.ASCII) else "MODEL.gguf"
    yield from ("## Use", "", "```sh", f"hf2q serve --model {name}", "```", "")


def _made(report: Report) -> Iterator[str]:
    yield "## How the files were made"
    yield ""
    for facts in (report.reference, *(file.facts for file in report.files)):
        yield from _facts(facts, "reference" if facts is report.reference else "")


def _facts(facts: Facts, role: str) -> Iterator[str]:
    yield f"{code(facts.name)}{f', the {role}' if role else ''}"
    yield ""
    for file in facts.files:
        yield f"- {code(file.name)}: {file.size:,} bytes, SHA-256 `{file.sha256}`"
    for what, value in facts.receipt or facts.keys:
        if what.startswith("source file "):
            continue  # the receipt and the page have them
        yield f"- {plain(what)}: {code(value)}"
    yield ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
