"""`Counted`: counts requests and responses of the whole application, those that no route takes included."""

from __future__ import annotations

from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from hf2q.serve.api import metric_table as table
from hf2q.serve.api.metrics import Metrics

_CHAT = "/v1/chat/completions"


class Counted:
    """Wraps an ASGI app. Routes are counted by their template, so that clients cannot make up label values."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._http = metrics.http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        chat = scope["path"] == _CHAT and scope["method"] == "POST"
        response = _Response(send)
        self._count(table.IN_FLIGHT).inc()
        if chat:
            self._count(table.CHATS_STARTED).inc()
        try:
            await self._app(scope, receive, response)
        finally:
            self._count(table.IN_FLIGHT).dec()
            if response.status:
                route = str(scope.get("path_template") or "other") if response.status != 404 else "other"
                self._count(table.RESPONSES).labels(route, str(response.status)).inc()
            if response.stream and not response.complete:
                self._count(table.CANCELLED_STREAMS).inc()
            if chat and response.status == 200 and response.complete:
                self._count(table.CHATS_COMPLETED).inc()
            if chat and response.status == 429:
                self._count(table.CHATS_REFUSED).inc()

    def _count(self, metric: table.Metric) -> Any:
        return self._http[metric.name]


class _Response:
    """Looks at a response on its way."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.stream = False
        self.complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
            self.stream = any(kind.startswith(b"text/event-stream") for kind in kinds)
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True
