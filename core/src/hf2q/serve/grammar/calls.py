"""What the syntaxes of calls have in common: parameters in an order, texts between markers. For plugins.

Rules and terminals are in llguidance's Lark syntax. A builder is given parameters that
`hf2q.serve.grammar.schema.check_schema` has written: references are ``#/$defs/rN``, patterns match whole texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hf2q.serve.grammar.lark import escaped, json_rule, quoted
from hf2q.serve.grammar.parameters import resolve, types, written
from hf2q.serve.grammar.problems import SchemaError

__all__ = [
    "Members",
    "Parameter",
    "SchemaError",
    "closed",
    "escaped",
    "json_rule",
    "json_value",
    "members",
    "ordered",
    "quoted",
    "repeated",
    "text_terminal",
    "text_until",
    "types",
    "written",
]

FREE_ORDER = 4
"""So many parameters may come in any order; more in the order of the schema. Each one more doubles the rules."""

_TOP = {"type", "properties", "required", "additionalProperties", "$defs"}
_HOPS = 16


class Parameter(NamedTuple):
    """A parameter of a function: its name, its schema, and whether it must be given."""

    name: str
    schema: Any
    required: bool


class Members(NamedTuple):
    """The parameters of a function, and the schema of those that it does not name; None where there may be none."""

    named: tuple[Parameter, ...]
    others: Any


def members(schema: Any, root: Mapping[str, Any], path: str = "") -> Members:
    """Take the schema of an object apart, for a syntax that writes each member by itself.

    Members that the schema neither names nor speaks of may be given only where it names none at all.
    Errors: SchemaError for a schema that says more about its object.
    """
    for _ in range(_HOPS):
        if not (isinstance(schema, Mapping) and "$ref" in schema and set(schema) <= {"$ref", "$defs", "type"}):
            break
        schema = resolve(schema["$ref"], root)
    if not isinstance(schema, Mapping) or set(schema) - _TOP:
        extra = ", ".join(sorted(set(schema) - _TOP)) if isinstance(schema, Mapping) else repr(schema)
        raise SchemaError(
            f"{extra}: this model's syntax of calls takes an object's type, properties, required and "
            "additionalProperties alone",
            path,
        )
    properties = schema.get("properties", {})
    required = [*schema.get("required", ())]
    others = schema.get("additionalProperties", not properties)
    missing = [name for name in required if name not in properties]
    if missing and others is False:
        raise SchemaError(f"{missing[0]!r:.60} is required, and not among the properties", f"{path}/required")
    found = [Parameter(name, part, name in required) for name, part in properties.items() if part is not False]
    if any(properties.get(name) is False for name in required):
        raise SchemaError("a required property can have no value", f"{path}/required")
    found += [Parameter(name, True if others is True else others, True) for name in missing]
    return Members(tuple(found), None if others is False else others)


def closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema` of a function's arguments without members that it does not speak of, where it names some."""
    names = schema.get("properties")
    if (
        not names
        or set(schema) - _TOP
        or "additionalProperties" in schema
        or set(schema.get("required", ())) - set(names)
    ):
        return schema
    return {**schema, "additionalProperties": False}


def repeated(one: str, *, before: str, close: str, again: Sequence[str], parallel: bool) -> str:
    """The rule ``call_rest`` of a syntax with one call between markers: `before` and `close` around the rule `one`, and
    where `parallel`, one of `again` before each further call.
    """
    call = f"{quoted(before)} {one} {quoted(close)}"
    more = f" (({' | '.join(map(quoted, again))}) {call})*" if parallel else ""
    return f"call_rest: {call}{more}"


def ordered(
    name: str, parts: Sequence[tuple[str, bool]], *, others: str | None = None, separator: str | None = None
) -> str:
    """The rule `name`: members one after the other, none twice, those that are required in any case.

    parts      (what matches a member, whether it is required), in the order of the schema
    others     what matches a member that the schema does not name; any number of them follow
    separator  a literal between two members
    """
    between = f"{quoted(separator)} " if separator else ""
    rules: list[str] = []

    def end(first: bool) -> str:
        if others is None:
            return '""'
        if not separator:
            return f"({others})*"
        return f"({others} ({between}{others})*)?" if first else f"({between}{others})*"

    def lead(first: bool) -> str:
        return "" if first else between

    if len(parts) <= FREE_ORDER:
        for given in range(1 << len(parts)):
            choices = [
                f"{lead(given == 0)}{part} {name}_{given | 1 << place}"
                for place, (part, _) in enumerate(parts)
                if not given >> place & 1
            ]
            if all(given >> place & 1 for place, (_, required) in enumerate(parts) if required):
                choices.append(end(given == 0))
            rules.append(f"{name}_{given}: " + " | ".join(choices))
        return "\n".join([f"{name}: {name}_0", *rules])
    for place, (part, required) in enumerate(parts):
        for first in (True, False):
            if first and any(needed for _, needed in parts[:place]):
                continue
            choices = [f"{lead(first)}{part} {name}_{place + 1}_1"]
            if not required:
                choices.append(f"{name}_{place + 1}_{0 if first else 1}")
            rules.append(f"{name}_{place}_{0 if first else 1}: " + " | ".join(choices))
    if not any(needed for _, needed in parts):
        rules.append(f"{name}_{len(parts)}_0: {end(True)}")
    rules.append(f"{name}_{len(parts)}_1: {end(False)}")
    return "\n".join([f"{name}: {name}_0_0", *rules])


def json_value(schema: Any, root: Mapping[str, Any]) -> str:
    """What matches the JSON of one value."""
    document = {"enum": []} if schema is False else {} if schema is True else dict(schema)
    if "$ref" in str(document) and "$defs" in root:
        document["$defs"] = root["$defs"]
    return json_rule(document)


def text_until(name: str, marker: str, *, within: str = "", barred: str = "") -> str:
    """The rule `name`: a text and the `marker` that ends it, the first one.

    `within` is a terminal's expression that the text must match (see `text_terminal`), `barred` a regular expression of
    what is nowhere in it: what a reader would take for its end.
    """
    terminal = name.upper()
    body = f"/(?s:.*){escaped(marker)}/"
    if within:  # such a text may go on where any other would have ended, so the marker is barred from it
        body = f"({within} & ~/(?s:.*){escaped(marker)}(?s:.*)/ & /(?s:.*)/) {quoted(marker)}"
    if barred:
        body = f"({body}) & ~/(?s:.*){barred}(?s:.*)/"
    return f"{name}[lazy]: {terminal}\n{terminal}: {body}"


def text_terminal(schema: Any, root: Mapping[str, Any], hops: int = _HOPS) -> str:
    """What the texts that `schema` allows match, as an expression for terminals; "" for any.

    Errors: SchemaError for a word that is not understood here, and where no text is allowed.
    """
    if schema is True:
        return ""
    if not isinstance(schema, Mapping) or hops == 0:
        raise SchemaError("the schema allows no text")
    parts: list[str] = []
    for word, value in schema.items():
        if word in ("enum", "const"):
            texts = [text for text in (value if word == "enum" else [value]) if isinstance(text, str)]
            if not texts:
                raise SchemaError("the schema allows no text")
            parts.append("(" + " | ".join(_literal(text) for text in texts) + ")")
        elif word == "pattern":
            parts.append(f"/{_bare(value)}/")
        elif word == "$ref":
            parts.append(text_terminal(resolve(value, root), root, hops - 1))
        elif word == "allOf":
            parts += [text_terminal(part, root, hops - 1) for part in value]
        elif word == "anyOf":
            choices = [text_terminal(part, root, hops - 1) for part in value if _takes_text(part, root)]
            parts.append("" if "" in choices else "(" + " | ".join(choices) + ")")
        elif word == "oneOf":
            choices = [text_terminal(part, root, hops - 1) for part in value if _takes_text(part, root)]
            if len(choices) != 1:
                raise SchemaError("oneOf with several texts cannot be enforced here")
            parts += choices
    if "minLength" in schema or "maxLength" in schema:
        parts.append(f"/(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})/")
    parts = [part for part in parts if part]
    return "" if not parts else parts[0] if len(parts) == 1 else "(" + " & ".join(parts) + ")"


def _takes_text(schema: Any, root: Mapping[str, Any]) -> bool:
    kinds = types(schema, root)
    return schema is not False and (kinds is None or "string" in kinds)


def _bare(pattern: str) -> str:
    """Without the anchors that `check_schema` writes: terminals match whole texts anyway."""
    return re.sub(r"(?<!\\)/", r"\\/", pattern.removeprefix("^").removesuffix("$"))


def _literal(text: str) -> str:
    return quoted(text) if text else "/()/"
