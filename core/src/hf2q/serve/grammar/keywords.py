"""Which words of JSON Schema are enforced, which say nothing about a value, and which are refused."""

from __future__ import annotations

SAYING_NOTHING = frozenset(
    [
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment"),
        *("contentMediaType", "contentEncoding", "contentSchema", "externalDocs", "xml", "discriminator", "nullable"),
        *("$defs", "definitions", "$schema", "markdownDescription", "enumDescriptions", "enumNames"),
    ]
)
"""Left out: annotations of JSON Schema, of OpenAPI and of editors. A value that follows the rest is valid with them.

Definitions are read where they are referred to. Words that begin with ``x-`` are annotations too.
"""

ENFORCED = frozenset(
    [
        *("type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"),
        *("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    ]
)

TYPES = frozenset({"null", "boolean", "number", "integer", "string", "array", "object"})

COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

WITHOUT_EFFECT = {
    "uniqueItems": (False,),
    "propertyNames": ({"type": "string"}, {}, True),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "minContains": (0,),
    "not": (False,),
}
"""Words that are refused, but for these values, with which they say nothing. Zod writes ``propertyNames`` so."""
