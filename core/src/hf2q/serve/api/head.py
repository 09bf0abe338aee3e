"""HEAD is answered wherever GET is, with the same headers and no body (RFC 9110, section 9.3.2)."""

from __future__ import annotations

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send


class Head:
    """Wraps an ASGI app that knows GET alone: load balancers and ``curl -I`` ask with HEAD whether a server lives."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        head = scope["method"] == "HEAD"
        if head:
            scope["method"] = "GET"

        async def send_changed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [(name, _allowed(name, value)) for name, value in message["headers"]]
            elif message["type"] == "http.response.body" and head:
                message["body"] = b""
            await send(message)

        await self._app(scope, receive, send_changed)


def _allowed(name: bytes, value: bytes) -> bytes:
    return value.replace(b"GET", b"GET, HEAD") if name == b"allow" else value
