"""``GET /hf2q/v1/status``: what the server is doing at this moment, in numbers. Nothing of any request's content."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Request, get
from litestar.response.base import ASGIResponse

from hf2q.serve.api.schema import encode
from hf2q.serve.api.service import Service
from hf2q.serve.observe import EngineStats
from hf2q.types import Record


class ModelStatus(Record, frozen=True, kw_only=True):
    """One model. `engine` is null while it is not loaded, and for embedding models."""

    id: str
    state: str
    loaded: bool
    engine: EngineStats | None


class ServerStatus(Record, frozen=True, kw_only=True):
    """The whole server: whether it takes requests, what it does otherwise, and its models."""

    ready: bool
    detail: str
    uptime_seconds: float
    models: tuple[ModelStatus, ...]


@get("/hf2q/v1/status")
async def status(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Slots, queue, caches and rates at this moment, in numbers."""
    service: Service = request.app.state.service
    # asking an engine takes its lock: not in the event loop's thread
    found = await asyncio.to_thread(server_status, service)
    return ASGIResponse(body=encode(found), headers={"cache-control": "no-store"}, media_type="application/json")


def server_status(service: Service) -> ServerStatus:
    """The server as it is now."""
    readiness = service.readiness()
    engines = service.engines()
    return ServerStatus(
        ready=readiness.ready,
        detail=readiness.detail,
        uptime_seconds=service.uptime,
        models=tuple(
            ModelStatus(
                id=member.file.id,
                state=member.state.value,
                loaded=member.loaded is not None,
                engine=engines[member.file.id].stats() if member.file.id in engines else None,
            )
            for member in service.pool.members
        ),
    )
