"""The generated table of docs/reference/metrics.md. Called by reference.py."""

from __future__ import annotations

import re

from hf2q.serve.api.metric_table import markdown


def filled(page: str) -> str:
    """`page` with the table as it should be."""
    pattern = r"(<!-- generated: metrics -->\n).*?(<!-- end -->)"
    page, count = re.subn(pattern, lambda match: f"{match[1]}{markdown()}{match[2]}", page, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"metrics.md has {count} places for the table, expected 1")
    return page
