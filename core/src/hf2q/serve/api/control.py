"""Operating the server over HTTP: what it can and holds (runtime), loading a model (activate), stopping (shutdown)."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import msgspec
from litestar import Request, get, post
from litestar.response.base import ASGIResponse

import hf2q
from hf2q.errors import Hf2qError
from hf2q.serve.api.body import decode_as, read_body
from hf2q.serve.api.disconnect import NOBODY, ClientGone, while_connected
from hf2q.serve.api.errors import HttpRefusal
from hf2q.serve.api.listening import is_loopback
from hf2q.serve.api.pool import Member, NoRoom, wait_for
from hf2q.serve.api.schema import encode
from hf2q.serve.api.service import Service, told
from hf2q.serve.api.settings import ApiSettings
from hf2q.types import Record

SCHEMA_VERSION = 1
"""Of ``/hf2q/v1/runtime``: a field that changes its meaning or goes away raises it, a new one does not."""

_NO_STORE = {"cache-control": "no-store"}
_LONGEST_WAIT_S = 3600.0


class Activation(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``/hf2q/v1/models/activate``."""

    model: str
    evict: bool = False


class ModelState(Record, frozen=True, kw_only=True):
    """A model as ``/hf2q/v1/runtime`` shows it.

    state   known (never loaded), loading, ready, failed or evicted;  detail  why it failed, else null
    bytes   of its files;  leases  requests that use it now;  idle_seconds  since one last did, null before the first
    slots   requests that it answers at the same time, 0 for an embedding model and while it is not loaded
    arch, backend, context_length  null while they are not known
    """

    id: str
    aliases: tuple[str, ...]
    task: str
    state: str
    detail: str | None
    arch: str | None
    backend: str | None
    context_length: int | None
    vision: bool
    bytes: int
    leases: int
    idle_seconds: float | None
    load_seconds: float | None
    slots: int


class PoolState(Record, frozen=True, kw_only=True):
    """What is in memory, and what may be. `memory_budget` is null where there is no limit."""

    loaded: int
    max_models: int
    bytes: int
    memory_budget: int | None
    on_demand: bool


class Runtime(Record, frozen=True, kw_only=True):
    """``/hf2q/v1/runtime``."""

    schema_version: int
    version: str
    pid: int
    supervised: bool
    uptime_seconds: float
    ready: bool
    detail: str
    backends: tuple[str, ...]
    slots: int
    pool: PoolState
    models: tuple[ModelState, ...]
    limits: dict[str, Any]
    routes: tuple[str, ...]


@get("/hf2q/v1/runtime")
async def runtime(request: Request[Any, Any, Any]) -> ASGIResponse:
    """What the server can and what it holds in memory; the shape is versioned."""
    service: Service = request.app.state.service
    settings: ApiSettings = request.app.state.settings
    ready = service.readiness()
    models = tuple(_state(member) for member in service.pool.members)
    found = Runtime(
        schema_version=SCHEMA_VERSION,
        version=hf2q.__version__,
        pid=os.getpid(),
        supervised=service.supervised,
        uptime_seconds=service.uptime,
        ready=ready.ready,
        detail=ready.detail,
        backends=tuple(sorted({model.backend for model in models if model.backend})),
        slots=sum(model.slots for model in models),
        pool=PoolState(
            loaded=len(service.pool.loaded),
            max_models=service.pool.max_models,
            bytes=service.pool.nbytes,
            memory_budget=service.pool.budget,
            on_demand=service.on_demand,
        ),
        models=models,
        limits={name: getattr(settings, name) for name in settings.__struct_fields__ if name.startswith("max_")},
        routes=tuple(sorted({f"{m} {r.path}" for r in request.app.routes for m in _methods(r)})),
    )
    return ASGIResponse(body=encode(found), headers=_NO_STORE, media_type="application/json")


@post("/hf2q/v1/models/activate", status_code=200)
async def activate(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Load a model: ``{"model": id, "evict": false}``; with `evict` the one used longest ago may have to go for it."""
    service: Service = request.app.state.service
    settings: ApiSettings = request.app.state.settings
    if service.stopping:
        raise HttpRefusal("the server is shutting down", status=503, code="not_ready", headers={"retry-after": "1"})
    asked = decode_as(await read_body(request, settings.max_body), Activation)
    member = service.member(asked.model)
    if member.failure is not None:
        raise HttpRefusal(
            f"the engine of {member.file.id!r} has failed: only a new process can load it again",
            status=503,
            code="not_ready",
            headers={"x-should-retry": "false"},
        )
    job = service.pool.load(member, evict=asked.evict)
    try:
        done = await while_connected(wait_for(job, _LONGEST_WAIT_S), request.receive)
    except ClientGone:  # the load goes on
        return ASGIResponse(status_code=NOBODY)
    error = job.exception() if done else None
    if isinstance(error, NoRoom):
        hint = None if asked.evict else '"evict": true takes the model out that was used longest ago'
        raise HttpRefusal(error.message, status=409, hint=hint, code="no_room", headers={"x-should-retry": "false"})
    if error is not None or not done:
        why = told(member) if isinstance(error, Hf2qError) else "the server's log says more"
        raise HttpRefusal(
            f"the model {member.file.id!r} cannot be loaded: {why}",
            status=503,
            code="model_load_failed",
            headers={"x-should-retry": "false"},
        )
    return ASGIResponse(body=encode(_state(member)), headers=_NO_STORE, media_type="application/json")


@post("/shutdown", status_code=202)
async def shutdown(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Stop as SIGTERM does: running answers may finish. Without API keys, only for clients on this machine."""
    service: Service = request.app.state.service
    settings: ApiSettings = request.app.state.settings
    client = request.scope.get("client")
    if not settings.keys and not is_loopback(client[0] if client else None):
        raise HttpRefusal(
            "without an API key the server is stopped from its own machine only",
            status=403,
            hint="start it with --api-key-file",
            code="shutdown_not_allowed",
        )
    if service.stop_soon is None:
        raise HttpRefusal("this server cannot be stopped over HTTP", status=501, code="not_implemented")
    body = {
        "status": "accepted",
        "pid": os.getpid(),
        "active": service.busy,
        "pre_shutdown_queue_depth": service.queued,
        "kv_persist_enabled": False,
    }
    # after the answer is on its way
    asyncio.get_running_loop().call_later(0.05, service.stop_soon)
    return ASGIResponse(body=encode(body), status_code=202, headers=_NO_STORE, media_type="application/json")


ROUTES = (runtime, activate, shutdown)


def _state(member: Member) -> ModelState:
    loaded = member.loaded
    model = None if loaded is None else loaded.model
    engine = None if loaded is None else loaded.engine
    failure = member.failure
    task = member.file.task if model is None else model.task
    return ModelState(
        id=member.file.id,
        aliases=member.file.aliases,
        task=task,
        state="failed" if failure is not None else member.state.value,
        detail=failure.message if failure is not None else told(member) if member.error is not None else None,
        arch=(member.file.arch or None) if model is None else model.arch,
        backend=None if model is None else model.backend,
        context_length=None if model is None else model.context_length,
        vision=member.file.mmproj is not None,
        bytes=member.file.nbytes,
        leases=member.leases,
        idle_seconds=round(time.monotonic() - member.used, 3) if member.used else None,
        load_seconds=round(member.load_s, 3) if member.load_s else None,
        slots=0 if engine is None else len(engine.stats().slots),
    )


def _methods(route: Any) -> list[str]:
    return sorted(set(route.methods) - {"OPTIONS"})
