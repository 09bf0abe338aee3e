"""Whether a schema has any value of finite size. One that must contain itself has none: generation would not end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf2q.serve.grammar.problems import SchemaError

_PASSES = 50


def check_finite(schema: Any, defs: Mapping[str, Any]) -> None:
    """Errors: SchemaError when every value of `schema` would hold another value of a schema that holds it, for ever.

    The least fixed point: a definition is finite once a value of it needs finite ones alone. Types that a schema allows
    besides objects and arrays count as a way out, so a doubtful case passes here; it ends at a later limit.
    """
    finite: set[str] = set()
    names = list(defs)
    for _ in range(_PASSES):
        before = len(finite)
        names.reverse()  # definitions mostly refer to later ones: chains then take one pass
        for name in names:
            if name not in finite and _finite(defs[name], finite):
                finite.add(name)
        if len(finite) == before:
            break
    else:
        raise SchemaError("its definitions refer to one another in too many steps")
    if not _finite(schema, finite):
        raise SchemaError("the schema requires a value within itself without end, so nothing can satisfy it")


def _finite(schema: Any, known: set[str]) -> bool:
    if not isinstance(schema, Mapping):
        return bool(schema)
    if "$ref" in schema and schema["$ref"].rpartition("/")[2] not in known:
        return False
    for word in ("anyOf", "oneOf"):
        if word in schema and not any(_finite(part, known) for part in schema[word]):
            return False
    if not all(_finite(part, known) for part in schema.get("allOf", ())):
        return False
    kinds = schema.get("type")
    if kinds in ("object", ["object"]):
        members = schema.get("properties", {})
        return all(_finite(members[name], known) for name in schema.get("required", ()) if name in members)
    if kinds in ("array", ["array"]):
        least, prefix = schema.get("minItems", 0), schema.get("prefixItems", ())
        needed = [*prefix[:least], *([schema["items"]] if least > len(prefix) and "items" in schema else ())]
        return all(_finite(part, known) for part in needed)
    return True
