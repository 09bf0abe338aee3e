"""One TCP connection: uvicorn's, with limits on slow and hostile peers, and errors in the form of all others."""

from __future__ import annotations

import asyncio
import sys
import uuid
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from hf2q.serve.api.errors import HttpRefusal, refusal
from hf2q.serve.api.settings import ApiSettings


def connections(settings: ApiSettings) -> type[H11Protocol]:
    """The class of connections within the limits of `settings`; uvicorn makes one object for each."""

    class Limited(Connection):
        limits = settings

    return Limited


class Peer(h11.Connection):
    """h11's side of a connection. It bounds only heads that are not whole yet, and takes some that are ambiguous."""

    def __init__(self, max_head: int) -> None:
        super().__init__(h11.SERVER, max_head)
        self._max_head = max_head

    def next_event(self) -> Any:
        """h11: what has come. Errors: h11.RemoteProtocolError."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            fields = sum(len(name) + len(value) + len(": \r\n") for name, value in event.headers)
            if len(event.method) + len(event.target) + fields > self._max_head:
                raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
            if event.http_version not in (b"1.0", b"1.1"):
                raise h11.RemoteProtocolError(f"HTTP/{event.http_version.decode()} is not spoken here")
            if {b"transfer-encoding", b"content-length"} <= names:
                raise h11.RemoteProtocolError("Transfer-Encoding and Content-Length together")
        return event


class Connection(H11Protocol):
    """A connection whose client must send the head of a request, and read its answer, within a time.

    A head that is too long is 431 and no HTTP 400; a connection too many is 503. Each closes the connection.
    """

    limits = ApiSettings()

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.conn = Peer(self.limits.max_head)
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """asyncio: a client is there."""
        super().connection_made(transport)
        # told when it has asked: who is answered before that may see a reset instead
        self._refused = len(self.connections) > self.limits.max_connections
        self._head = self.loop.call_later(self.limits.head_s, self._on_late_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: it is gone."""
        self._stop_head()
        self._stop_stall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """asyncio: it says something."""
        if self.transport.is_closing():
            return
        if self._refused:
            self._answer(_too_many(self.limits.max_connections))
            return
        super().data_received(data)
        if self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete:
            # it has its answer, and goes on sending what nobody will read
            if self._head is None:
                self._head = self.loop.call_later(self.limits.head_s, self.transport.close)
        elif self.conn.their_state is not h11.IDLE:
            self._stop_head()  # the head is there; the body has a time of its own
        elif self._head is None and self.conn.trailing_data[0]:
            self._head = self.loop.call_later(self.limits.head_s, self._on_late_head)

    def pause_writing(self) -> None:
        """asyncio: what it does not read piles up here."""
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(self.limits.stall_s, self._on_stall)

    def resume_writing(self) -> None:
        """asyncio: it reads again."""
        self._stop_stall()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """uvicorn: what came is no HTTP. Called where h11's error is being handled, which knows more."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if status == 431:
            self._answer(
                HttpRefusal(
                    f"the head of the request is longer than the {self.limits.max_head} bytes accepted",
                    status=431,
                    code="request_too_large",
                )
            )
        else:
            self._answer(HttpRefusal(f"this is not HTTP/1.1: {error or msg}", status=400, code="invalid_http"))

    def _on_late_head(self) -> None:
        self._head = None
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            return
        late = f"no request came within {self.limits.head_s:g} s"
        self._answer(HttpRefusal(late, status=408, code="request_timeout"))

    def _on_stall(self) -> None:
        self._stall = None
        self.transport.abort()  # to the application this is a client that has gone: only its own request ends

    def _answer(self, error: HttpRefusal) -> None:
        """Answer without the application, and close."""
        self._stop_head()
        if self.transport.is_closing():
            return
        found = refusal(error)
        body = msgspec.json.encode(found.body)
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            "x-request-id": str(uuid.uuid4()),
            **found.headers,
        }
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
            for event in (
                h11.Response(status_code=found.status, headers=encoded, reason=STATUS_PHRASES[found.status]),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _stop_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _stop_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


def _too_many(limit: int) -> HttpRefusal:
    return HttpRefusal(
        f"{limit} connections are open, as many as this server takes",
        status=503,
        code="too_many_connections",
        headers={"retry-after": "1"},
    )
