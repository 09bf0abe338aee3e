"""Refusing a request outside the router, in the form that the router refuses in."""

from __future__ import annotations

import msgspec
from litestar.types import Scope, Send

from hf2q.serve.api.errors import HttpRefusal, note_refusal, refusal


def header(scope: Scope, name: bytes) -> bytes:
    """The first header of that name (lower case), ``b""`` when there is none."""
    return next((value for key, value in scope["headers"] if key == name), b"")


def method(scope: Scope) -> str:
    """GET and so on; "" for what is no HTTP."""
    return str(scope.get("method", ""))


async def refuse(scope: Scope, send: Send, error: HttpRefusal) -> None:
    """Answer with `error`. A body that the client sends is not read: the connection ends."""
    found = refusal(error)
    note_refusal(scope, found)
    body = msgspec.json.encode(found.body)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **found.headers}
    if method(scope) not in ("GET", "HEAD", "OPTIONS"):
        headers["connection"] = "close"
    encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": found.status, "headers": encoded})
    sent = b"" if method(scope) == "HEAD" else body
    await send({"type": "http.response.body", "body": sent, "more_body": False})
