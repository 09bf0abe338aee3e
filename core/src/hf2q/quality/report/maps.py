"""Tensors by layers, as tables of coloured cells: a row for each tensor of a layer, a column for each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from hf2q.quality.report.charts import short
from hf2q.quality.report.colours import ErrorClasses
from hf2q.quality.report.markup import Markup, scroller, tag
from hf2q.quality.report.numbers import percent, size
from hf2q.quality.similarity import TensorSimilarity, layer_order

Told = Callable[[TensorSimilarity], tuple[str, str]]
"""The class of a tensor's cell, and its text."""


def layer_map(tensors: Sequence[TensorSimilarity], told: Told, caption: str) -> Markup:
    """The table. Tensors outside of all layers come first, in a column of their own."""
    columns = sorted({one.layer for one in tensors}, key=layer_order)
    rows: dict[str, dict[str, TensorSimilarity]] = {}
    for one in sorted(tensors, key=lambda one: one.layer != ""):
        part = one.name.removeprefix(f"{one.layer}.") if one.layer else one.name
        rows.setdefault(part, {})[one.layer] = one
    every = max(1, len(columns) // 40)
    head = [
        tag("th", short(layer) if number % every == 0 else tag("span", short(layer), class_="vh"), scope="col")
        for number, layer in enumerate(columns)
    ]
    body = [
        tag("tr", tag("th", part, scope="row"), [_cell(found.get(layer), told) for layer in columns])
        for part, found in rows.items()
    ]
    inner = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", tag("th", "tensor", scope="col"), head)),
        tag("tbody", body),
        class_="map",
    )
    return scroller(inner, caption)


def _cell(one: TensorSimilarity | None, told: Told) -> Markup:
    if one is None:
        return tag("td")
    class_, text = told(one)
    return tag("td", tag("span", text, class_="vh"), class_=class_, title=f"{one.name}: {text}")


def type_map(tensors: Sequence[TensorSimilarity], classes: Mapping[str, str]) -> Markup:
    """Which type each tensor has."""
    return layer_map(tensors, lambda one: (classes[one.qtype], one.qtype), "Types of tensors, by layer")


def error_map(tensors: Sequence[TensorSimilarity], errors: ErrorClasses) -> Markup:
    """By how much each tensor is off."""
    return layer_map(
        tensors,
        lambda one: (errors.of(one.relative_error), percent(one.relative_error)),
        "Relative errors of tensors, by layer",
    )


def type_legend(totals: Sequence[tuple[str, int, int]], classes: Mapping[str, str]) -> Markup:
    """What colours mean: (type, tensors, bytes)."""
    return _legend((classes[qtype], f"{qtype}: {tensors} tensors, {size(nbytes)}") for qtype, tensors, nbytes in totals)


def error_legend(errors: ErrorClasses) -> Markup:
    """What colours mean."""
    ranges = [(name, f"{percent(low, 2)} to {percent(high, 2)}") for name, low, high in errors.bounds()]
    return _legend([("none", "no error"), *ranges])


def _legend(entries: Iterable[tuple[str, str]]) -> Markup:
    items = [tag("li", tag("span", class_=f"swatch {class_}"), text) for class_, text in entries]
    return tag("ul", items, class_="legend")
