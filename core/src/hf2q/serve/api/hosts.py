"""The Host and Origin headers: a web page that somebody visits must not reach a server that is not meant for it.

A page can make its own host name point at 127.0.0.1 (DNS rebinding) and then read what a local server answers: the Host
header still carries the page's name, and that is how it is told. A page of another origin can also send a POST without
being allowed to read the answer; the Origin header gives it away.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from hf2q.serve.api.errors import HttpRefusal
from hf2q.serve.api.settings import ANY_IP
from hf2q.serve.api.wire import header, refuse

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Hosts:
    """Wraps an ASGI app, which sees only requests that name this server by one of its names.

    hosts    as in `ApiSettings.hosts`; None lets everything through
    origins  of pages that may use this server; ``*`` for all
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None, origins: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = None if hosts is None else frozenset(name.lower() for name in hosts)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if self._hosts is None or scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        host = header(scope, b"host")
        if not self._known(name_of(host.decode("latin-1"))):
            await refuse(scope, send, _unknown(host))
        elif scope["method"] not in _SAFE and self._foreign(header(scope, b"origin"), host):
            await refuse(scope, send, _foreign_origin(header(scope, b"origin")))
        else:
            await self._app(scope, receive, send)

    def _known(self, name: str) -> bool:
        hosts = self._hosts or frozenset()
        if name in hosts or "*" in hosts:
            return True
        if ANY_IP in hosts and _is_ip(name):
            return True
        return any(one.startswith("*.") and name.endswith(one[1:]) for one in hosts)

    def _foreign(self, origin: bytes, host: bytes) -> bool:
        """Whether a page of another origin, which is not one of those allowed, has sent it."""
        if not origin or "*" in self._origins or origin.decode("latin-1") in self._origins:
            return False
        scheme, _, where = origin.partition(b"://")
        return scheme not in (b"http", b"https") or where.lower() != host.lower()


def name_of(host: str) -> str:
    """The name in a Host header, without its port and the brackets of IPv6, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _unknown(host: bytes) -> HttpRefusal:
    return HttpRefusal(
        f"the Host header says {host[:200].decode('latin-1')!r}, which is not a name of this server",
        status=403,
        hint="--allowed-host NAME adds one",
        code="host_not_allowed",
    )


def _foreign_origin(origin: bytes) -> HttpRefusal:
    return HttpRefusal(
        f"pages of {origin[:200].decode('latin-1')!r} may not use this server",
        status=403,
        hint="--cors-origin ORIGIN allows it",
        code="origin_not_allowed",
    )
