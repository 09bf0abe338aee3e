"""Cross-origin access, for the origins that were configured and no others.

Methods and headers as in the Fetch standard's preflight; the ``x-stainless-…`` headers are those that OpenAI's
JavaScript client adds to each request.
"""

from __future__ import annotations

from collections.abc import Collection

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from hf2q.serve.api.wire import header, method

METHODS = b"GET, POST, OPTIONS"
HEADERS = ("content-type", "authorization", "x-request-id")
_CLIENT = "x-stainless-"


class Cors:
    """Wraps an ASGI app. Preflights of allowed origins are answered here, before any key is asked for."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        origin = header(scope, b"origin") if self._origins and scope["type"] == ScopeType.HTTP else b""
        if not origin:
            await self._app(scope, receive, send)
            return
        allowed = "*" in self._origins or origin.decode("latin-1") in self._origins
        if allowed and method(scope) == "OPTIONS" and header(scope, b"access-control-request-method"):
            headers = [
                *_permission(origin),
                (b"access-control-allow-methods", METHODS),
                (b"access-control-allow-headers", _headers(header(scope, b"access-control-request-headers"))),
                (b"access-control-max-age", b"600"),
                (b"content-length", b"0"),
            ]
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        added = _permission(origin) if allowed else [(b"vary", b"origin")]

        async def send_with_permission(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, send_with_permission)


def _permission(origin: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"x-request-id, retry-after"),
        (b"vary", b"origin"),
    ]


def _headers(asked: bytes) -> bytes:
    wanted = (name.strip().lower() for name in asked.decode("latin-1").split(","))
    return ", ".join([*HEADERS, *(name for name in wanted if name.startswith(_CLIENT))]).encode("latin-1")
