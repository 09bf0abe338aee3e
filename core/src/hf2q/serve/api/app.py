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
from hf2q.serve.api.chat_completions import chat_completions
from hf2q.serve.api.errors import on_hf2q_error, on_http_exception, on_other
from hf2q.serve.api.head import Head
from hf2q.serve.api.request_id import RequestId
from hf2q.serve.api.schema import Health, ModelList, ModelRow
from hf2q.serve.api.service import Service
from hf2q.serve.api.settings import ApiSettings


def create_app(service: Service, settings: ApiSettings | None = None) -> ASGIApp:
    """The application over `service`, for any ASGI server."""
    app = Litestar(
        route_handlers=ROUTES,
        exception_handlers={HTTPException: on_http_exception, Hf2qError: on_hf2q_error, Exception: on_other},
        state=State({"service": service, "settings": settings or ApiSettings()}),
        openapi_config=None,
        logging_config=None,
        request_max_body_size=None,  # `read_body` has its own limit
    )
    return RequestId(Head(app))


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
    """The model that is served."""
    return ModelList(data=(_service(request).row(),))


@get("/v1/models/{model_id:path}")
async def model(request: Request[Any, Any, Any]) -> ModelRow:
    """One model; slashes in its id may come as they are or percent-encoded."""
    service = _service(request)
    name = str(request.path_params["model_id"]).removeprefix("/")
    if name != service.model_id:
        raise service.unknown(name)
    return service.row()


ROUTES = (health, readyz, models, model, chat_completions)
"""Every route; what they are is in their docstrings."""


def _service(request: Request[Any, Any, Any]) -> Service:
    found: Service = request.app.state.service
    return found
