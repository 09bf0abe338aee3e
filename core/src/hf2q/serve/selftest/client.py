"""Requests to a server on this machine, with the standard library's HTTP client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

DONE = "[DONE]"


class Answer(NamedTuple):
    """A response: status, headers with names in lower case, and the body, decoded when it is JSON."""

    status: int
    headers: Mapping[str, str]
    body: Any


class Stream(NamedTuple):
    """A streamed response: its headers, its raw text, and the data of its frames, ``[DONE]`` included."""

    status: int
    headers: Mapping[str, str]
    raw: bytes
    data: tuple[str, ...]

    @property
    def chunks(self) -> list[Any]:
        """The frames that hold JSON, decoded."""
        return [json.loads(each) for each in self.data if each != DONE]


class Client:
    """Asks the server at `base` (http://host:port), with `key` if it wants one, for answers within `timeout` s."""

    def __init__(self, base: str, *, key: str | None = None, timeout: float = 300.0) -> None:
        where = urlsplit(base)
        self._host, self._port = where.hostname or "127.0.0.1", where.port or 80
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._timeout = timeout

    def get(self, path: str) -> Answer:
        """GET."""
        return self.send("GET", path)

    def post(self, path: str, body: Any) -> Answer:
        """POST `body` as JSON; bytes go as they are."""
        return self.send("POST", path, body)

    def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Any request. Errors: OSError, http.client.HTTPException."""
        connection = self.opened(method, path, body, headers)
        try:
            response = connection.getresponse()
            raw = response.read()
            kind = response.headers.get_content_type()
            found = json.loads(raw) if kind == "application/json" and raw else raw
            return Answer(response.status, _lower(response), found)
        finally:
            connection.close()

    def stream(self, path: str, body: Any) -> Stream:
        """POST `body` and read the event stream to its end."""
        connection = self.opened("POST", path, body)
        try:
            response = connection.getresponse()
            raw = response.read()
            frames = [part for part in raw.replace(b"\r\n", b"\n").split(b"\n\n") if part]
            data = tuple(part[6:].decode() for part in frames if part.startswith(b"data: "))
            return Stream(response.status, _lower(response), raw, data)
        finally:
            connection.close()

    def opened(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPConnection:
        """A connection over which the request was sent; the caller closes it."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        sent = dict(self._headers)
        payload = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        if payload is not None:
            sent["content-type"] = "application/json"
        connection.request(method, path, payload, {**sent, **(headers or {})})
        return connection


def _lower(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}
