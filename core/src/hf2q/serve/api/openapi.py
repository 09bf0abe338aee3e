"""``GET /openapi.json``: the routes and the shapes of what they take and give, from the types that do the work.

A document and no page: nothing here asks other servers for anything.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from litestar import Litestar, Request, get
from litestar.response.base import ASGIResponse
from litestar.routes import HTTPRoute

import hf2q
from hf2q.serve.api import (
    chat_request,
    completions_request,
    embeddings,
    responses_request,
    responses_schema,
    schema,
    tokens,
)
from hf2q.serve.api.completions_frames import Completion
from hf2q.serve.api.errors import ErrorBody
from hf2q.types import Record

_PATH = re.compile(r"\{(\w+)(?::\w+)?\}")


class Shape(Record, frozen=True, kw_only=True):
    """What a route takes and gives; `stream` is each event of a stream."""

    body: Any = None
    response: Any = None
    stream: Any = None


SHAPES: dict[str, Shape] = {
    "/v1/chat/completions": Shape(body=chat_request.Body, response=schema.ChatCompletion, stream=schema.ChatChunk),
    "/v1/completions": Shape(body=completions_request.Body, response=Completion, stream=Completion),
    "/v1/responses": Shape(body=responses_request.Body, response=responses_schema.Response),
    "/v1/embeddings": Shape(body=embeddings.Body, response=embeddings.Embeddings),
    "/v1/models": Shape(response=schema.ModelList),
    "/v1/models/{model_id:path}": Shape(response=schema.ModelRow),
    "/tokenize": Shape(body=tokens.TokenizeBody, response=tokens.Tokens),
    "/detokenize": Shape(body=tokens.DetokenizeBody, response=tokens.Content),
    "/apply-template": Shape(body=tokens.TemplateBody, response=tokens.Rendered),
    "/health": Shape(response=schema.Health),
    "/readyz": Shape(response=schema.Ready),
}
"""By path; what is not here is described in words alone."""


@get("/openapi.json")
async def openapi(request: Request[Any, Any, Any]) -> ASGIResponse:
    """This API as an OpenAPI document."""
    return ASGIResponse(body=msgspec.json.encode(document(request.app)), media_type="application/json")


def document(app: Litestar) -> dict[str, Any]:
    """The document, OpenAPI 3.1. Types of one name in several modules are told apart by their module."""
    known = {route.path for route in app.routes}
    shapes = {path: shape for path, shape in SHAPES.items() if path in known}
    types = [one for shape in shapes.values() for one in (shape.body, shape.response, shape.stream) if one]
    schemas, components = msgspec.json.schema_components(
        (*types, ErrorBody), ref_template="#/components/schemas/{name}"
    )
    of = dict(zip([id(one) for one in (*types, ErrorBody)], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for path, method, function in sorted(_routes(app), key=lambda one: one[:2]):
        operation = _operation(path, function, shapes.get(path, Shape()), of)
        paths.setdefault(_PATH.sub(r"{\1}", path), {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "hf2q", "version": hf2q.__version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _routes(app: Litestar) -> Iterable[tuple[str, str, Any]]:
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for handler in route.route_handlers:
                for method in handler.http_methods - {"OPTIONS", "HEAD"}:
                    yield route.path, method.lower(), handler.fn


def _operation(path: str, function: Any, shape: Shape, of: dict[int, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if shape.response is not None:
        content["application/json"] = {"schema": of[id(shape.response)]}
    if shape.stream is not None:
        content["text/event-stream"] = {"schema": of[id(shape.stream)]}
    found: dict[str, Any] = {
        "summary": (inspect.getdoc(function) or "").partition("\n")[0],
        "operationId": function.__name__,
        "responses": {
            "200": {"description": "done", "content": content},
            "default": {
                "description": "refused, or failed",
                "content": {"application/json": {"schema": of[id(ErrorBody)]}},
            },
        },
    }
    names = _PATH.findall(path)
    if names:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if shape.body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": of[id(shape.body)]}}}
    return found
