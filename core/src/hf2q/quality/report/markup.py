"""HTML and SVG as text in which everything is escaped, unless it is markup made here."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TypeAlias


class Markup(str):
    """Text that is HTML already; only `tag` and `joined` make it."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | Iterable[Child] | None"
"""Text, markup, nothing, or several of these."""

VOID = frozenset({"circle", "line", "meta", "rect"})
"""Elements without content; in drawings they must be closed, and elsewhere they may be."""


def clean(text: str) -> str:
    """Text from a file nobody vouches for: what cannot be printed, directions of writing included, is spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def joined(*children: Child) -> Markup:
    """Children one after the other, escaped where they are plain text."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(html.escape(clean(child)))
        else:
            parts.append(joined(*child))
    return Markup("".join(parts))


def tag(element: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """An element. ``class_`` is the attribute class, ``view_box`` viewBox, ``_`` stands for ``-``; None is left out."""
    words = [element]
    for key, value in attributes.items():
        if value is not None:
            spelled = "viewBox" if key == "view_box" else key.rstrip("_").replace("_", "-")
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words.append(f'{spelled}="{html.escape(clean(text))}"')
    head = " ".join(words)
    return Markup(f"<{head}/>" if element in VOID else f"<{head}>{joined(*children)}</{element}>")


def table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[Child]], *, numbers: Sequence[int] = ()
) -> Markup:
    """A table that scrolls sideways where it is too wide. The first cell of a row names it; columns `numbers` are
    aligned to the right."""

    def style(column: int) -> str | None:
        return "n" if column in numbers else None

    head = tag("tr", [tag("th", title, scope="col", class_=style(at)) for at, title in enumerate(header)])
    body = [
        tag(
            "tr",
            [
                tag("td", cell, class_=style(at)) if at else tag("th", cell, scope="row", class_=style(at))
                for at, cell in enumerate(row)
            ],
        )
        for row in rows
    ]
    inner = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
    return scroller(inner, caption)


def scroller(inner: Markup, label: str) -> Markup:
    """A region that scrolls sideways, with the keyboard too."""
    return tag("div", inner, class_="scroll", role="region", aria_label=label, tabindex="0")
