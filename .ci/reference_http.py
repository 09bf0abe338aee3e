"""The generated parts of docs/reference/http.md: what is between ``<!-- generated: NAME -->`` and ``<!-- end -->``.

The prose around them is written by hand. Called by reference.py.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from hf2q.serve.api import (
    chat_request,
    completions_request,
    embeddings,
    errors,
    responses_fields,
    responses_request,
    tokens,
)
from hf2q.serve.api.app import ROUTES
from hf2q.serve.api.chat_fields import CHAT, SAMPLING
from hf2q.serve.api.fields import Fields
from hf2q.serve.api.lease import SAMPLING_KEYS, STANDARD
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.sampling import SamplingParams

ENDPOINTS: dict[str, tuple[Fields, type]] = {
    "chat": (CHAT, chat_request.Body),
    "completions": (completions_request.COMPLETIONS, completions_request.Body),
    "responses": (responses_fields.RESPONSES, responses_request.Body),
    "embeddings": (embeddings.EMBEDDINGS, embeddings.Body),
    "tokenize": (tokens.TOKENIZE, tokens.TokenizeBody),
    "detokenize": (tokens.DETOKENIZE, tokens.DetokenizeBody),
    "apply-template": (tokens.APPLY_TEMPLATE, tokens.TemplateBody),
}
"""What becomes of each field, and the type that reads them."""

ITEMS = {"ChatMessage": "message", "ToolBody": "tool"}
"""Words for what lists hold."""


def filled(page: str) -> str:
    """`page` with every generated part as it should be."""
    parts = {
        "routes": routes(),
        **{name: fields(*endpoint) for name, endpoint in ENDPOINTS.items()},
        "sampling": sampling(),
        "errors": error_table(),
        "limits": limits(),
    }
    for name, text in parts.items():
        pattern = rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)"
        page, count = re.subn(pattern, lambda m, text=text: f"{m[1]}{text}{m[2]}", page, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"http.md has {count} places for {name}, expected 1")
    return page


def routes() -> str:
    """Method, path and what it is."""
    rows = []
    for route in ROUTES:
        (path,), (method,) = route.paths, route.http_methods
        path = re.sub(r":\w+}", "}", path)
        rows.append((f"`{method} {path}`", inspect.getdoc(route.fn)))
    return table(("route", "what it is"), rows)


def fields(table_of: Fields, body: type) -> str:
    """Every field of an endpoint: what it takes, and whether it is honoured, refused or a hint."""
    types = msgspec.json.schema(body)["$defs"][body.__name__]["properties"]
    if types.keys() != table_of.honoured.keys() | table_of.hints:
        raise SystemExit(f"{body.__module__}.{body.__name__} and its table of fields differ")
    rows = [(f"`{n}`", values(types[n]), "honoured", text) for n, text in table_of.honoured.items()]
    rows += [
        (f"`{n}`", values(types[n]), "hint", "checked for its type, and without effect") for n in sorted(table_of.hints)
    ]
    for name, (why, neutral) in table_of.refused.items():
        only = " or ".join(f"`{json.dumps(value)}`" for value in (*neutral, None))
        rows.append((f"`{name}`", f"{only} alone", "refused", why))
    return table(("field", "value", "", "what it does, or why it is refused"), rows)


def sampling() -> str:
    """What holds for a request that does not say."""
    keys = {name: key for key, name in SAMPLING_KEYS.items()}
    standard = msgspec.structs.asdict(SamplingParams(**STANDARD))
    fields = [name for name in standard if name in SAMPLING]
    rows = ((f"`{name}`", f"`{keys[name]}`" if name in keys else "–", _plain(standard[name])) for name in fields)
    return table(("field", "the model file's key", "without either"), rows)


def _plain(value: Any) -> str:
    return "a fresh one for each request" if value is None else f"`{json.dumps(value)}`"


def error_table() -> str:
    """The table that the server's own module documents."""
    found = re.search(r"\n\n((?: {4}.*\n)+)", errors.__doc__ or "")
    if not found:
        raise SystemExit("hf2q.serve.api.errors documents no table")
    return f"```text\n{inspect.cleandoc(found[1])}\n```\n"


def limits() -> str:
    """Limits that are built in."""
    s = ApiSettings()
    return table(
        ("limit", "value"),
        [
            ("request body", f"{s.max_body >> 20} MiB; longer ones are 413"),
            ("`messages`, `tools`, `stop`", f"{s.max_messages}, {s.max_tools} and {s.max_stops} entries"),
            ("choices of one request", f"{s.max_choices}: prompts times `n`"),
            ("`input` of embeddings", f"{s.max_inputs} texts"),
            ("`echo` with `logprobs`", f"prompts of {s.max_echo} tokens"),
            (
                "images of one request",
                f"{s.max_images}, each of {s.max_image_bytes >> 20} MiB and {s.max_image_pixels} pixels",
            ),
            ("silence in a stream", f"{s.ping_s:g} s; then a comment line (`: ping`) is sent"),
        ],
    )


def values(schema: dict[str, Any]) -> str:
    """A JSON schema in words; null, which every optional field takes, is left out."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(values(one) for one in schema["anyOf"] if one.get("type") != "null"))
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"] if one is not None)
    if "$ref" in schema:
        return ITEMS.get(schema["$ref"].rsplit("/", 1)[1], "object")
    kind = schema.get("type", "value")
    low, high = schema.get("minimum"), schema.get("maximum")
    if kind == "integer" and high is not None:
        if high > 2**32:
            return "whole number"
        return f"whole number from {low}" if high > 2**30 else f"whole number {low} to {high}"
    if low is not None:
        return f"{kind} {low:g} to {high:g}"
    if kind == "array":
        item = values(schema["items"]) if schema.get("items") else "value"
        return "list of whole numbers" if item.startswith("whole number") else f"list of {item}s"
    return "text" if kind == "string" else kind


def table(head: Iterable[str], rows: Iterable[Iterable[str | None]]) -> str:
    """A Markdown table."""
    names = list(head)
    lines = [names, ["---"] * len(names), *([cell or "" for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
