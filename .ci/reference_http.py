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

from hf2q.serve.api import errors
from hf2q.serve.api.app import ROUTES
from hf2q.serve.api.chat_request import Body
from hf2q.serve.api.fields import HINTS, HONOURED, REFUSED
from hf2q.serve.api.service import SAMPLING_KEYS, STANDARD
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.sampling import SamplingParams


def filled(page: str) -> str:
    """`page` with every generated part as it should be."""
    parts = {
        "routes": routes(),
        "honoured": honoured(),
        "hints": hints(),
        "refused": refused(),
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
        rows.append((f"`{method} {path.replace(':path', '')}`", inspect.getdoc(route.fn)))
    return table(("route", "what it is"), rows)


def honoured() -> str:
    """Fields with an effect."""
    schema = msgspec.json.schema(Body)["$defs"][Body.__name__]["properties"]
    return table(
        ("field", "value", "what it does"), ((f"`{n}`", values(schema[n]), text) for n, text in HONOURED.items())
    )


def hints() -> str:
    """Fields that are taken and do nothing."""
    return ", ".join(f"`{name}`" for name in sorted(HINTS)) + "\n"


def refused() -> str:
    """Fields that are refused, and what they may say nevertheless."""
    rows = (
        (f"`{name}`", why, " or ".join(f"`{json.dumps(value)}`" for value in (*neutral, None)))
        for name, (why, neutral) in REFUSED.items()
    )
    return table(("field", "why", "accepted"), rows)


def sampling() -> str:
    """What holds for a request that does not say."""
    keys = {name: key for key, name in SAMPLING_KEYS.items()}
    standard = msgspec.structs.asdict(SamplingParams(**STANDARD))
    fields = [name for name in standard if name in HONOURED]
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
    settings = ApiSettings()
    return table(
        ("limit", "value"),
        [
            ("request body", f"{settings.max_body >> 20} MiB; longer ones are 413"),
            ("silence in a stream", f"{settings.ping_s:g} s; then a comment line (`: ping`) is sent"),
        ],
    )


def values(schema: dict[str, Any]) -> str:
    """A JSON schema in words; null, which every optional field takes, is left out."""
    if "anyOf" in schema:
        return " or ".join(values(one) for one in schema["anyOf"] if one.get("type") != "null")
    kind = schema.get("type", "object")
    low, high = schema.get("minimum"), schema.get("maximum")
    if kind == "integer" and high is not None:
        return "whole number" if high > 2**32 else f"whole number from {low}"
    if low is not None:
        return f"{kind} {low:g} to {high:g}"
    if kind == "array":
        longest = f"up to {schema['maxItems']} " if "maxItems" in schema else ""
        return f"list of {longest}{values(schema['items'])}s"
    return "text" if kind == "string" else "message" if schema.get("$ref", "").endswith("ChatMessage") else kind


def table(head: Iterable[str], rows: Iterable[Iterable[str | None]]) -> str:
    """A Markdown table."""
    names = list(head)
    lines = [names, ["---"] * len(names), *([cell or "" for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
