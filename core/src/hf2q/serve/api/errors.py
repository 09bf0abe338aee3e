"""How a refusal looks over HTTP: one table from exception class to status, type and code, and the body they make.

Body, as OpenAI's: ``{"error": {"message": str, "type": str, "param": str | null, "code": str | null}}``.

    ContextLengthError   400  invalid_request_error  context_length_exceeded
    OverloadedError      429  server_error           queue_full           retry-after: 1
                         503  server_error           not_ready            retry-after: 1, when the engine is closing
    HttpRefusal          its own status              401, 403, 404, 405, 408, 409, 413, 415, 503 …
    RequestError         400  invalid_request_error  its own code
    AnswerError          500  server_error           its own code         x-should-retry: false
    Hf2qError            500  server_error           generation_error     x-should-retry: false
    anything else        500  server_error           internal_error       x-should-retry: false

OpenAI's clients repeat 408, 409, 429 and every 5xx twice by themselves; a fault that would only happen again is
therefore marked so that they do not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.types import Scope

from hf2q.errors import AnswerError, ContextLengthError, Hf2qError, OverloadedError, RequestError
from hf2q.serve.api.request_id import request_id
from hf2q.types import Record

log = logging.getLogger(__name__)

INVALID = "invalid_request_error"
SERVER = "server_error"
_NO_RETRY = {"x-should-retry": "false"}
_REFUSAL = "hf2q_refusal"
_LONGEST = 1000
"""Characters of a message: it may quote what a client sent, which is as long as the client likes."""


class ErrorObject(Record, frozen=True, kw_only=True):
    """The ``error`` object of a body or of a stream's last frame."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(Record, frozen=True, kw_only=True):
    """A whole error body."""

    error: ErrorObject


class Refusal(Record, frozen=True, kw_only=True):
    """An error as it goes over the wire: status, body, extra headers."""

    status: int
    body: ErrorBody
    headers: dict[str, str] = msgspec.field(default_factory=dict)


class HttpRefusal(RequestError):
    """A request refused by a rule of HTTP or of this server, with the status that says so."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        hint: str | None = None,
        param: str | None = None,
        code: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`kind` is the ``type`` of the body, where the status does not say it."""
        super().__init__(message, hint=hint, param=param, code=code)
        self.status = status
        self.kind = kind or (INVALID if status < 500 else SERVER)
        self.headers = dict(headers or {})


def refusal(error: BaseException) -> Refusal:
    """The table above, applied to `error`."""
    if isinstance(error, HttpRefusal):
        return _made(error.status, error, error.kind, error.param, error.code, error.headers)
    if isinstance(error, ContextLengthError):
        return _made(400, error, INVALID, error.param or "messages", "context_length_exceeded")
    if isinstance(error, OverloadedError) and error.code == "not_ready":
        return _made(503, error, SERVER, None, error.code, {"retry-after": "1"})
    if isinstance(error, OverloadedError):
        return _made(429, error, SERVER, error.param, error.code or "queue_full", {"retry-after": "1"})
    if isinstance(error, RequestError):
        return _made(400, error, INVALID, error.param, error.code)
    if isinstance(error, Hf2qError):
        code = error.code if isinstance(error, AnswerError) else None
        return _made(500, error, SERVER, None, code or "generation_error", _NO_RETRY)
    hidden = Hf2qError("the server failed while it handled this request; its log says more")
    return _made(500, hidden, SERVER, None, "internal_error", _NO_RETRY)


def _made(
    status: int,
    error: Hf2qError,
    kind: str,
    param: str | None,
    code: str | None,
    headers: Mapping[str, str] | None = None,
) -> Refusal:
    message = _cut(error.message, _LONGEST)
    if error.hint:
        message = f"{message} ({error.hint})"
    body = ErrorBody(error=ErrorObject(message=message, type=kind, param=param and _cut(param, 200), code=code))
    return Refusal(status=status, body=body, headers=dict(headers or {}))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def on_hf2q_error(request: Request[Any, Any, Any], error: Hf2qError) -> Response[bytes]:
    """For litestar: what hf2q refuses."""
    return _response(request, error, bug=not isinstance(error, RequestError))


def on_http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """For litestar: what its router refuses (404, 405)."""
    status = error.status_code
    path = request.scope["path"]
    if status == 404:
        message, code = f"no such path: {request.method} {path}", None
    elif status == 405:
        message, code = f"{request.method} is not allowed for {path}", "method_not_allowed"
    else:
        message, code = str(error.detail), None
    refused = HttpRefusal(message, status=status, code=code, headers=error.headers)
    return _response(request, refused, bug=status >= 500)


def on_other(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """For litestar: a bug. The log gets the traceback, the client does not."""
    return _response(request, error, bug=True)


def _response(request: Request[Any, Any, Any], error: Exception, *, bug: bool = False) -> Response[bytes]:
    found = refusal(error)
    note_refusal(request.scope, found)
    if bug:
        log_refusal(request_id(request.scope), found, error)
    body = msgspec.json.encode(found.body)
    # the request was read to its end, unless a rule of HTTP stopped it before: then what it still sends is read too
    close = {} if isinstance(error, HttpRefusal) else {"connection": "close"}
    return Response(body, status_code=found.status, headers={**close, **found.headers}, media_type="application/json")


def note_refusal(scope: Scope, found: Refusal) -> None:
    """Leave with a request why it was refused, for the line that the log gets at its end."""
    scope["state"][_REFUSAL] = found


def noted_refusal(scope: Scope) -> Refusal | None:
    """What `note_refusal` left."""
    found: Refusal | None = scope["state"].get(_REFUSAL)
    return found


def log_refusal(id: str, found: Refusal, bug: BaseException | None) -> None:
    """A line about a request that was refused or failed after its answer had begun, with the traceback of `bug`."""
    level = logging.INFO if bug is None else logging.ERROR
    log.log(level, "request %s: %d, %s", id, found.status, printable(found.body.error.message), exc_info=bug)


def printable(text: str) -> str:
    """Text that a client sent, unable to write lines of the log or to control a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
