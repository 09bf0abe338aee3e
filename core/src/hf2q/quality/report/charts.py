"""Drawings: SVG made of a few shapes, sized in pixels of a page; colours and text come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf2q.quality.report.markup import Markup, scroller, tag
from hf2q.quality.report.numbers import nats, percent, size
from hf2q.quality.similarity import LayerSimilarity, TensorSimilarity

LEFT, RIGHT, TOP, BOTTOM = 74.0, 16.0, 14.0, 44.0


def scatter(points: Sequence[tuple[float, float]], *, y_title: str, told: Callable[[float], str], label: str) -> Markup:
    """Files as numbered points, from 1: bytes to the right, and upwards what is told by `told`, on a logarithmic scale
    where all values are greater than 0."""
    width, height = 640.0, 320.0
    across = _axis([x for x, _ in points], LEFT, width - RIGHT, logarithmic=False)
    upwards = _axis([y for _, y in points], height - BOTTOM, TOP, logarithmic=all(y > 0 for _, y in points))
    parts = [_grid_x(across, size, (TOP, height - BOTTOM), "size", width), _grid_y(upwards, told, width, y_title)]
    for number, (x, y) in enumerate(points, 1):
        at = (across.place(x), upwards.place(y))
        title = tag("title", f"{number}: {size(x)}, {told(y)}")
        parts.append(tag("circle", cx=at[0], cy=at[1], r=5.0, class_="point"))
        parts.append(tag("text", str(number), title, x=at[0] + 9, y=at[1] + 4, class_="strong"))
    return _drawing(parts, width, height, label)


def histogram(bins: Sequence[tuple[float, float, int]], marks: Mapping[str, float], *, label: str) -> Markup:
    """Tokens by divergence in nats, (from, to, tokens), on a logarithmic scale, with named marks."""
    width, height, most = 640.0, 260.0, max(count for _, _, count in bins)
    top, floor = TOP + 13.0 * len(marks), height - BOTTOM
    low, high = bins[0][0], bins[-1][1]
    axis = _Axis(low, high, LEFT, width - RIGHT, logarithmic=True)
    upwards = _Axis(0.0, float(most), floor, top, logarithmic=False)
    parts = [
        _grid_x(axis, "{:.2g}".format, (top, floor), "KL divergence of a token, nats", width),
        _grid_y(upwards, "{:,.0f}".format, width, "tokens"),
    ]
    for start, stop, count in bins:
        left, above = axis.place(start), upwards.place(count)
        shape = {"x": left + 0.5, "y": above, "width": axis.place(stop) - left - 1, "height": floor - above}
        parts.append(tag("rect", class_="bar", **shape))
    for number, (name, value) in enumerate(marks.items()):
        if low <= value <= high:
            at, above = axis.place(value), TOP + 13.0 * number
            parts.append(tag("line", x1=at, x2=at, y1=above, y2=floor, class_="mark"))
            left = at > width - 100
            words: dict[str, Any] = {
                "x": at + (-4 if left else 4),
                "y": above + 8,
                "text_anchor": "end" if left else None,
            }
            parts.append(tag("text", f"{name} {nats(value)}", class_="small", **words))
    return _drawing(parts, width, height, label)


def layers(
    rows: Sequence[LayerSimilarity], tensors: Sequence[TensorSimilarity], classes: Mapping[str, str], *, label: str
) -> Markup:
    """Above, the bytes of each layer by type; below, its relative error."""
    step = max(9.0, min(40.0, 550.0 / len(rows)))
    width, middle, height = LEFT + RIGHT + step * len(rows), 170.0, 330.0
    largest = max(row.nbytes for row in rows)
    upwards = _Axis(0.0, float(largest), middle, TOP, logarithmic=False)
    worst = max(row.relative_error for row in rows)
    lower = _Axis(0.0, worst or 1.0, height - BOTTOM, middle + 24, logarithmic=False)
    parts = [_grid_y(upwards, size, width, "size"), _grid_y(lower, lambda v: percent(v, 2), width, "error")]
    every = max(1, math.ceil(26 / step))
    for number, row in enumerate(rows):
        left, name = LEFT + number * step, short(row.layer)
        bottom = 0.0
        for qtype, class_ in classes.items():
            nbytes = sum(one.nbytes for one in tensors if one.layer == row.layer and one.qtype == qtype)
            if nbytes:
                top = upwards.place(bottom + nbytes)
                title = tag("title", f"{name}, {qtype}: {size(nbytes)}")
                shape = {"x": left + 1, "y": top, "width": step - 2, "height": upwards.place(bottom) - top}
                parts.append(tag("g", title, tag("rect", class_=f"{class_} edge", **shape)))
                bottom += nbytes
        top = lower.place(row.relative_error)
        title = tag("title", f"{name}: {percent(row.relative_error)}")
        shape = {"x": left + 1, "y": top, "width": step - 2, "height": height - BOTTOM - top}
        parts.append(tag("g", title, tag("rect", class_="bar", **shape)))
        if number % every == 0:
            parts.append(
                tag("text", name, x=left + step / 2, y=height - BOTTOM + 14, class_="small", text_anchor="middle")
            )
    parts.append(tag("text", "layer", x=LEFT, y=height - 8, class_="small"))
    return _drawing(parts, width, height, label)


def short(layer: str) -> str:
    """The name of a layer for an axis: its number, with what stands before ``blk``, a dash outside of all."""
    return layer.replace("blk.", "") or "–"


class _Axis:
    """Values to pixels, from `start` to `end`."""

    def __init__(self, low: float, high: float, start: float, end: float, *, logarithmic: bool) -> None:
        self.low, self.high, self.start, self.end, self.logarithmic = low, high, start, end, logarithmic

    def place(self, value: float) -> float:
        """Where a value lies."""
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        share = (at - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> list[float]:
        """Round values: powers of ten, or steps of 1, 2 or 5 of them."""
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            found = [10.0**power for power in range(first, last + 1)]
            return found if len(found) > 1 else [self.low, self.high]
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        power = 10.0 ** math.floor(math.log10(span / 4))
        step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 5)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def _axis(values: Sequence[float], start: float, end: float, *, logarithmic: bool) -> _Axis:
    """An axis with some room around the values, none of which is below 0."""
    low, high = min(values), max(values)
    if logarithmic:
        return _Axis(low / 1.5, high * 1.5, start, end, logarithmic=True)
    room = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
    return _Axis(max(0.0, low - room), high + room, start, end, logarithmic=False)


def _grid_x(
    axis: _Axis, told: Callable[[float], str], between: tuple[float, float], title: str, width: float
) -> Markup:
    parts, (top, bottom) = [], between
    for value in axis.ticks():
        at = axis.place(value)
        parts.append(tag("line", x1=at, x2=at, y1=top, y2=bottom, class_="grid"))
        parts.append(tag("text", told(value), x=at, y=bottom + 15, class_="small", text_anchor="middle"))
    parts.append(tag("text", title, x=width - RIGHT, y=bottom + 34, class_="small", text_anchor="end"))
    return tag("g", parts)


def _grid_y(axis: _Axis, told: Callable[[float], str], width: float, title: str) -> Markup:
    parts = []
    for value in axis.ticks():
        at = axis.place(value)
        parts.append(tag("line", x1=LEFT, x2=width - RIGHT, y1=at, y2=at, class_="grid"))
        parts.append(tag("text", told(value), x=LEFT - 6, y=at + 4, class_="small", text_anchor="end"))
    middle = (axis.start + axis.end) / 2
    turned = f"rotate(-90 12 {middle:g})"
    parts.append(tag("text", title, x=12.0, y=middle, class_="small", text_anchor="middle", transform=turned))
    return tag("g", parts)


def _drawing(parts: Sequence[Markup], width: float, height: float, label: str) -> Markup:
    inner = tag(
        "svg",
        tag("title", label),
        parts,
        view_box=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
    )
    return scroller(inner, label)
