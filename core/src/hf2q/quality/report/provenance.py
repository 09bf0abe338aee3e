"""The part of the page that says what the files are, and how they were made."""

from __future__ import annotations

from collections.abc import Iterator

from hf2q.quality.report.facts import Facts
from hf2q.quality.report.markup import Markup, joined, tag
from hf2q.quality.report.measure import Report


def provenance(report: Report) -> Markup:
    """Digests, keys and receipts of the reference and of all files, and the digest of the text."""
    measured = report.measured
    corpus = None
    if measured is not None:
        corpus = joined(
            tag("h3", f"Text: {measured.corpus}"), _table("The text", [("SHA-256", measured.corpus_sha256)])
        )
    return tag(
        "section",
        tag("h2", "Provenance"),
        tag("h3", f"Reference: {report.reference.name}"),
        _table("The reference", _facts(report.reference)),
        [
            joined(tag("h3", f"{number}. {file.label}"), _table(f"How {file.label} was made", _facts(file.facts)))
            for number, file in enumerate(report.files, 1)
        ],
        corpus,
    )


def _facts(facts: Facts) -> Iterator[tuple[str, str]]:
    for file in facts.files:
        yield file.name, f"{file.size:,} bytes, SHA-256 {file.sha256}"
    if facts.arch is not None:
        yield "architecture", facts.arch
        yield "parameters", f"{facts.parameters:,}"
    yield from facts.keys
    for what, value in facts.receipt:
        yield f"receipt: {what}", value


def _table(caption: str, rows: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> Markup:
    """Two columns, of which the second may be long."""
    body = [
        tag("tr", tag("th", what, scope="row"), tag("td", tag("code", value), class_="long")) for what, value in rows
    ]
    inner = tag("table", tag("caption", caption), tag("tbody", body))
    return tag("div", inner, class_="scroll", role="region", aria_label=caption, tabindex="0")
