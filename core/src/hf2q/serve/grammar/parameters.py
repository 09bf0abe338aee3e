"""Whether the value of a parameter is written as bare text or as JSON, by its schema.

Families that write each parameter between markers of its own (Qwen, DeepSeek) write a text as it is and all else as
JSON. Where a schema allows both, the text ``42`` could be either; this decides it, for the reader of calls and for the
grammar that models are held to alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Written = Literal["text", "text or null", "json"]
"""
text          the value is the text between the markers, whatever it looks like
text or null  the same, but the four letters ``null`` are JSON's null
json          the text between the markers is JSON
"""

_MOST = 200
"""Schemas looked at for one value, before it counts as JSON: references may go in circles."""


def written(schema: Any, root: Mapping[str, Any]) -> Written:
    """How values of `schema` are written; `root` is the whole schema of the arguments, which ``$ref`` points into.

    Text is what allows no type but ``string`` (or, besides, ``null``); a schema without any type is JSON.
    """
    kinds = types(schema, root)
    if kinds is None or "string" not in kinds or kinds - {"string", "null"}:
        return "json"
    return "text or null" if "null" in kinds else "text"


def types(schema: Any, root: Mapping[str, Any]) -> set[str] | None:
    """The JSON types that `schema` allows at most; None for any, or where that is not clear."""
    return _Types(root).of(schema)


def resolve(reference: str, root: Any) -> Any:
    """What a reference within one document (``#/$defs/Name``) points to. Errors: KeyError for nothing there."""
    if not reference.startswith("#"):
        raise KeyError(reference)
    found = root
    for part in filter(None, reference[1:].split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, Sequence) and not isinstance(found, str) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            raise KeyError(reference)
    return found


class _Types:
    """The types of schemas within `root`; it looks at no more than `_MOST` of them."""

    def __init__(self, root: Any) -> None:
        self._root, self._left = root, _MOST

    def of(self, schema: Any) -> set[str] | None:
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0:
            return None
        found: list[set[str] | None] = []
        stated = schema.get("type")
        if isinstance(stated, str):
            found.append({stated})
        elif isinstance(stated, list | tuple):
            found.append({kind for kind in stated if isinstance(kind, str)})
        if isinstance(schema.get("enum"), list | tuple):
            found.append({_type(value) for value in schema["enum"]})
        if "const" in schema:
            found.append({_type(schema["const"])})
        if isinstance(schema.get("$ref"), str):
            try:
                found.append(self.of(resolve(schema["$ref"], self._root)))
            except KeyError:
                return None
        found += [self._any(schema[word]) for word in ("anyOf", "oneOf") if isinstance(schema.get(word), list | tuple)]
        if isinstance(schema.get("allOf"), list | tuple):
            found += [self.of(part) for part in schema["allOf"]]
        known = [kinds for kinds in found if kinds is not None]
        return set.intersection(*known) if known else None

    def _any(self, schemas: Sequence[Any]) -> set[str] | None:
        kinds: set[str] = set()
        for part in schemas:
            found = self.of(part)
            if found is None:
                return None
            kinds |= found
        return kinds


def _type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "object" if isinstance(value, Mapping) else "array"
