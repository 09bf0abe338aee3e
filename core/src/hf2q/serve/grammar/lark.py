"""Quoting for llguidance's Lark syntax, and the parts of grammars that all callers need.

Names that begin with ``hf2q_`` belong to this module. Source of the syntax: llguidance, docs/syntax.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

COMPACT = {"whitespace_flexible": False, "item_separator": ",[ ]?", "key_separator": ":[ ]?", "lenient": False}
"""JSON without white space but one blank behind a comma or colon: a model cannot lose itself in blanks."""


def quoted(text: str) -> str:
    """`text` as a Lark string, which matches exactly it."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """`text` within a ``/regular expression/``."""
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)


def json_rule(document: Mapping[str, Any]) -> str:
    """``%json`` of a schema that `hf2q.serve.grammar.schema.check_schema` has written."""
    return "%json " + json.dumps({**document, "x-guidance": COMPACT}, ensure_ascii=False, separators=(",", ":"))
