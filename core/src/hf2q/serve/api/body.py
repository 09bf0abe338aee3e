"""Reading a request's body: its type, its size, its JSON, and what a wrong value in it is called.

Everything is checked before anything else happens with the request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from litestar import Request

from hf2q.errors import RequestError
from hf2q.serve.api.disconnect import ClientGone
from hf2q.serve.api.errors import HttpRefusal

Wanted = TypeVar("Wanted")

_CHARSET = re.compile(r"\bcharset *= *\"?([^\";\s]+)")
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)
_EXTRA = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)


async def read_body(request: Request[Any, Any, Any], limit: int) -> bytes:
    """The body, of at most `limit` bytes, said to be JSON.

    Errors: HttpRefusal 415 for another content type or an encoding, 413 for a body that is too long; ClientGone.
    """
    headers = request.headers
    kind, _, more = headers.get("content-type", "").lower().partition(";")
    charset = _CHARSET.search(more)
    if kind.strip() != "application/json" or (charset is not None and charset[1] not in ("utf-8", "utf8")):
        found = f"content-type is {headers['content-type'][:80]!r}" if kind else "there is no content-type"
        raise HttpRefusal(f"{found}, expected application/json", status=415, code="unsupported_media_type")
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise HttpRefusal(
            f"content-encoding is {encoding!r}, which is not accepted", status=415, code="unsupported_media_type"
        )
    stated = headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > limit:
        raise _too_long(limit)
    pieces: list[bytes] = []
    size = 0
    coming = True
    while coming:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientGone
        size += len(message["body"])
        if size > limit:
            raise _too_long(limit)
        pieces.append(message["body"])
        coming = message["more_body"]
    return b"".join(pieces)


def decode_object(body: bytes) -> Mapping[str, msgspec.Raw]:
    """The body's fields, their values still encoded. Errors: RequestError when it is not one JSON object."""
    return _decode(body, dict[str, msgspec.Raw])


def decode_as(body: bytes, wanted: type[Wanted]) -> Wanted:
    """The body as `wanted`. Errors: RequestError whose `param` is the path of the first wrong value."""
    return _decode(body, wanted)


def convert_at(value: Mapping[str, msgspec.Raw], wanted: type[Wanted], place: str) -> Wanted:
    """An object of the body, at `place` in it, as `wanted`. Errors: as `decode_as`."""
    try:
        return msgspec.convert({name: msgspec.json.decode(raw) for name, raw in value.items()}, wanted, strict=True)
    except msgspec.MsgspecError as error:
        raise _wrong(str(error), place) from error
    except RecursionError as error:
        raise RequestError(f"{place} nests too deeply", param=place, code="invalid_value") from error


def _decode(body: bytes, wanted: type[Wanted]) -> Wanted:
    try:
        return msgspec.json.decode(body, type=wanted)
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = "empty" if not body.strip() else f"not JSON: {error}"
        raise RequestError(f"the body is {what}", code="invalid_json") from error
    except RecursionError as error:
        raise RequestError("the body nests too deeply", code="invalid_json") from error


def _wrong(text: str, place: str = "") -> RequestError:
    """msgspec's complaint, with the path in OpenAI's spelling (``messages[0].content``) as `param`."""
    match = _PLACE.match(text)
    what, path = (match["what"], match["path"] or "") if match else (text, "")
    path = f"{place}{path}".removeprefix(".").replace("[...]", "")
    missing, extra = _MISSING.match(what), _EXTRA.match(what)
    if missing or extra:
        name = (missing or extra or {})["name"]  # type: ignore[index]
        param = f"{path}.{name}" if path else name
        return RequestError(
            f"{param} is {'missing' if missing else 'not a known field'}",
            param=param,
            code="missing_required_parameter" if missing else "unknown_parameter",
        )
    where = f"{path}: " if path else ""
    return RequestError(f"{where}{what[:1].lower()}{what[1:]}", param=path or None, code="invalid_value")


def _too_long(limit: int) -> HttpRefusal:
    return HttpRefusal(
        f"the body is longer than the {limit} bytes accepted",
        status=413,
        code="request_too_large",
        headers={"connection": "close"},
    )
