"""A request's body must come within a time: a client that sends it byte by byte would hold a place for ever."""

from __future__ import annotations

import asyncio

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send
from litestar.types.asgi_types import HTTPReceiveMessage

from hf2q.serve.api.errors import HttpRefusal


class BodyDeadline:
    """Wraps an ASGI app: `receive` raises 408 when the body is not complete `seconds` after the request began."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        complete = False

        async def receive_in_time() -> HTTPReceiveMessage:
            nonlocal complete
            if complete:  # what comes now is the end of the connection, for which there is no hurry
                return await receive()  # type: ignore[return-value]
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                raise _late(self._seconds) from None
            complete = message["type"] != "http.request" or not message.get("more_body", False)
            return message  # type: ignore[return-value]

        await self._app(scope, receive_in_time, send)


def _late(seconds: float) -> HttpRefusal:
    return HttpRefusal(
        f"the body was not complete after {seconds:g} s",
        status=408,
        code="request_timeout",
        headers={"connection": "close"},
    )
