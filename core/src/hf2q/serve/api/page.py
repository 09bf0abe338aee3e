"""``GET /``: the page for people, plain files of `hf2q.serve.web`. It holds no data: what it shows it asks the API for.

The policy lets the page load nothing from elsewhere, run no script but its own files, and be framed by nobody.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Any

from litestar import Request, get
from litestar.response.base import ASGIResponse

from hf2q.serve.api.errors import HttpRefusal

TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
"""What is served, by the ending of its name. Texts are UTF-8, which the response says."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types"
)

_HEADERS = {
    "cache-control": "no-cache",  # a browser keeps it, and asks whether it is still the one
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@get("/")
async def page(request: Request[Any, Any, Any]) -> ASGIResponse:
    """The page for people: chat and status."""
    return _answer(request, "index.html")


@get("/web/{name:str}")
async def page_file(request: Request[Any, Any, Any]) -> ASGIResponse:
    """A file of the page."""
    return _answer(request, str(request.path_params["name"]))


def names() -> tuple[str, ...]:
    """The files that there are."""
    found = (path.name for path in files("hf2q.serve").joinpath("web").iterdir())
    return tuple(sorted(name for name in found if name.rpartition(".")[2] in TYPES))


def paths() -> frozenset[str]:
    """The paths of all of it: they hold no data, so who has no key yet may have them."""
    return frozenset({"/", *(f"/web/{name}" for name in names())})


def _answer(request: Request[Any, Any, Any], name: str) -> ASGIResponse:
    """Errors: HttpRefusal 404 for what is not one of the files."""
    if name not in names():
        raise HttpRefusal(f"no such path: GET {request.scope['path']}", status=404)
    body = files("hf2q.serve").joinpath("web", name).read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**_HEADERS, "etag": tag}
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if tag in known or "*" in known:
        return ASGIResponse(status_code=304, headers=headers)
    return ASGIResponse(body=body, headers=headers, media_type=TYPES[name.rpartition(".")[2]])
