"""Where in a schema that llguidance refuses the reason lies: its messages name no place."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from hf2q.serve.grammar.compiled import Grammars
from hf2q.serve.grammar.lark import json_rule
from hf2q.serve.grammar.problems import SchemaError, pointer
from hf2q.serve.grammar.schema import check_schema

SECONDS = 1.0
"""How long to look."""

_ONE = ("items", "additionalProperties", "additionalItems")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def locate(schema: Any, error: SchemaError, grammars: Grammars) -> SchemaError:
    """`error` with the place of the innermost schema that is refused by itself; `error` as it is where none is."""
    end = time.monotonic() + SECONDS
    for path, part in _parts(schema, ()):
        if time.monotonic() > end:
            break
        if not path:
            continue
        try:
            grammars.check("start: " + json_rule(check_schema(part, schema).document()), keep=False)
        except SchemaError as inner:
            return SchemaError(inner.message, pointer(path) + inner.path)
    return error


def _parts(schema: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Mapping[str, Any]]]:
    """The schemas in a schema, and itself, innermost first. Truth values are left out."""
    if not isinstance(schema, Mapping):
        return
    for word, value in schema.items():
        if word in _NAMED and isinstance(value, Mapping):
            for name, part in value.items():
                yield from _parts(part, (*path, word, name))
        elif word in _LISTS and isinstance(value, list | tuple):
            for index, part in enumerate(value):
                yield from _parts(part, (*path, word, index))
        elif word in _ONE:
            yield from _parts(value, (*path, word))
    yield path, schema
