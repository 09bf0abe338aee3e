"""What commands print with: JSON, aligned tables, sizes. stdout is for the product, stderr for talk about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print `value` on stdout as JSON, indented or on one line. Records (msgspec structs) are written as objects."""
    narrow = not (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(value, indent=indent, ensure_ascii=narrow, default=_plain))


def print_table(rows: Iterable[Sequence[str]], *, header: Sequence[str] | None = None, indent: str = "") -> None:
    """Print rows of cells on stdout in left-aligned columns, two spaces apart."""
    table = [tuple(row) for row in rows]
    if header is not None:
        table.insert(0, tuple(header))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)] if table else []
    for row in table:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(f"{indent}{line}".rstrip())


def note(message: str) -> None:
    """Print a line about the work, not part of its product, on stderr."""
    print(message, file=sys.stderr)


def size(nbytes: int) -> str:
    """Bytes for people: ``13.7 MB``, in powers of 1000."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.95:
            return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value, builtin_types=(float,))


def printable(text: str, limit: int | None = None) -> str:
    """Text from a file nobody vouches for, fit for a terminal: control characters escaped, cut after `limit`.

    A cut says how many characters there are in all.
    """
    shown = text if limit is None or len(text) <= limit else text[:limit]
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)
    return safe if shown is text else f"{safe}… ({len(text):,} characters)"
