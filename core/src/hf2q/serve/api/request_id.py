"""Every response carries ``x-request-id``: the client's own where it sent a usable one, else a new one."""

from __future__ import annotations

import re
import uuid

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

_USABLE = re.compile(rb"[A-Za-z0-9_.-]{1,256}")
_KEY = "hf2q_request_id"


def request_id(scope: Scope) -> str:
    """The id of the request that `scope` belongs to."""
    return str(scope["state"][_KEY])


class RequestId:
    """Wraps an ASGI app, so that what its router refuses is covered too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        found = given if _USABLE.fullmatch(given) else str(uuid.uuid4()).encode()
        scope.setdefault("state", {})[_KEY] = found.decode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", found)]
            await send(message)

        await self._app(scope, receive, send_with_id)
