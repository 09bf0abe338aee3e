"""Quoting for llguidance's Lark syntax, and the parts of grammars that all callers need.

Names that begin with ``hf2q_`` belong to this module. Source of the syntax: llguidance, docs/syntax.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hf2q.serve.grammar.problems import SchemaError

COMPACT = {"whitespace_flexible": False, "item_separator": ",[ ]?", "key_separator": ":[ ]?", "lenient": False}
"""JSON without white space but one blank behind a comma or colon: a model cannot lose itself in blanks."""

ESCAPES = '"\\\\bfnrt'
"""What may stand behind a backslash where names of properties count: with ``\\u`` one could be written in two ways."""

_CONTROL = re.compile(r"(?<!\\)(?:\\\\)*\\u00")


def quoted(text: str) -> str:
    """`text` as a Lark string, which matches exactly it."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """`text` within a ``/regular expression/``."""
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)


def json_rule(document: Mapping[str, Any]) -> str:
    """``%json`` of a schema that `hf2q.serve.grammar.schema.check_schema` has written.

    Errors: SchemaError, without a place, where names of properties count and constants need ``\\u``.
    """
    options = {**COMPACT, "json_allowed_escapes": ESCAPES} if _is_open(document) else COMPACT
    text = json.dumps({**document, "x-guidance": options}, ensure_ascii=False, separators=(",", ":"))
    if options is not COMPACT and _CONTROL.search(text):
        raise SchemaError("control characters in constants are enforced only where additionalProperties is false")
    return "%json " + text


def _is_open(document: Any) -> bool:
    """Whether an object in it has names that a schema of their own holds for, and others besides."""
    if isinstance(document, list | tuple):
        return any(map(_is_open, document))
    if not isinstance(document, Mapping):
        return False
    named = document.get("properties") or document.get("patternProperties")
    return (bool(named) and document.get("additionalProperties") is not False) or any(map(_is_open, document.values()))
