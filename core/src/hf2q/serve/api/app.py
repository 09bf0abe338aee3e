"""The HTTP application: routes, and what happens to everything that is not one."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Litestar, Request, get
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from hf2q.errors import Hf2qError
from hf2q.serve.api import control
from hf2q.serve.api.accounts import Accounts
from hf2q.serve.api.auth import HEALTH, Auth
from hf2q.serve.api.chat_completions import chat_completions
from hf2q.serve.api.completions import completions
from hf2q.serve.api.compute import Compute
from hf2q.serve.api.cors import Cors
from hf2q.serve.api.counting import Counted
from hf2q.serve.api.embeddings import embeddings
from hf2q.serve.api.errors import on_hf2q_error, on_http_exception, on_other
from hf2q.serve.api.head import Head
from hf2q.serve.api.hosts import Hosts
from hf2q.serve.api.metrics import Metrics, metrics
from hf2q.serve.api.openapi import openapi
from hf2q.serve.api.page import page, page_file, paths
from hf2q.serve.api.request_id import RequestId
from hf2q.serve.api.responses import ROUTES as RESPONSES
from hf2q.serve.api.responses_store import ResponseStore
from hf2q.serve.api.schema import Health, ModelList, ModelRow
from hf2q.serve.api.service import Service
from hf2q.serve.api.settings import ApiSettings
from hf2q.serve.api.status import status
from hf2q.serve.api.tokens import apply_template, detokenize, tokenize
from hf2q.serve.api.trickle import BodyDeadline


def create_app(service: Service, settings: ApiSettings | None = None, *, compute: Compute | None = None) -> ASGIApp:
    """The application over `service`, for any ASGI server.

    Around the router, from the outside in: the request's id, the line of the log, names of this server, other origins,
    keys, HEAD, and a time for the body. So what is refused by any of them has an id and a line too.
    """
    settings = settings or ApiSettings()
    metered = Metrics(service)
    shared = {
        "service": service,
        "settings": settings,
        "compute": compute or Compute(),
        "metrics": metered,
        "responses": ResponseStore(),
    }
    app: ASGIApp = Litestar(
        route_handlers=ROUTES,
        exception_handlers={HTTPException: on_http_exception, Hf2qError: on_hf2q_error, Exception: on_other},
        state=State(shared),
        openapi_config=None,
        logging_config=None,
        request_max_body_size=None,  # `read_body` has its own limit
    )
    public = paths() | HEALTH if settings.public_health else paths()
    app = Auth(Head(BodyDeadline(app, settings.body_s)), settings.keys, public=public)
    app = Accounts(Hosts(Cors(app, settings.cors_origins), settings.hosts, settings.cors_origins))
    service.watchers.add(app.observer)
    return RequestId(Counted(app, metered))


@get("/health")
async def health(request: Request[Any, Any, Any]) -> Health:
    """Whether the process lives: always, if there is an answer."""
    return _service(request).health()


@get("/readyz")
async def readyz(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Whether requests are taken."""
    found = _service(request).readiness()
    headers = {} if found.ready else {"retry-after": "1"}
    return ASGIResponse(
        body=msgspec.json.encode(found),
        status_code=200 if found.ready else 503,
        headers=headers,
        media_type="application/json",
    )


@get("/v1/models")
async def models(request: Request[Any, Any, Any]) -> ModelList:
    """The models that are served, whether they are in memory or not."""
    return ModelList(data=_service(request).rows())


@get("/v1/models/{model_id:path}")
async def model(request: Request[Any, Any, Any]) -> ModelRow:
    """One model; slashes in its id may come as they are or percent-encoded."""
    service = _service(request)
    return service.row(service.member(str(request.path_params["model_id"]).removeprefix("/")))


ROUTES = (
    health,
    readyz,
    models,
    model,
    chat_completions,
    completions,
    embeddings,
    tokenize,
    detokenize,
    apply_template,
    openapi,
    metrics,
    status,
    page,
    page_file,
    *RESPONSES,
    *control.ROUTES,
)
"""Every route; what they are is in their docstrings."""


def _service(request: Request[Any, Any, Any]) -> Service:
    found: Service = request.app.state.service
    return found
