"""Fetching what a client names, without letting it reach what the client could not reach itself.

Only http and https; every address that a host name stands for has to be public, and the connection is made to an
address that was looked at, so that a second look-up cannot give another; each redirect is judged like the first URL.
One deadline and one limit of bytes hold for everything together. Proxies of the environment are not used.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable
from urllib.parse import SplitResult, urljoin, urlsplit

from hf2q.errors import RequestError

REDIRECTS = 3
_PORTS = {"http": 80, "https": 443}
_MOVED = frozenset({301, 302, 303, 307, 308})


def is_public(address: str) -> bool:
    """Whether an IP address is one of the open internet."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    if mapped is not None:
        found = mapped
    return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)


def fetch(url: str, param: str, *, seconds: float, limit: int, allowed: Callable[[str], bool] = is_public) -> bytes:
    """What `url` gives, of at most `limit` bytes, within `seconds`.

    param    the field that holds the URL, for errors
    allowed  which IP addresses may be asked

    Errors: RequestError, code ``invalid_image_url``, saying nothing of what was found at addresses that are refused.
    """
    end = time.monotonic() + seconds
    try:
        for _ in range(REDIRECTS + 1):
            answer = _one(url, end, limit, allowed)
            if isinstance(answer, bytes):
                return answer
            url = urljoin(url, answer)
        raise _Refused(f"it leads on more than {REDIRECTS} times")
    except (_Refused, OSError, http.client.HTTPException, UnicodeError, ValueError) as error:
        why = str(error) if isinstance(error, _Refused) else "it cannot be fetched"
        raise RequestError(f"{param}: {why}", param=param, code="invalid_image_url") from error


class _Refused(Exception):
    """Why not, in words for the client."""


def _one(url: str, end: float, limit: int, allowed: Callable[[str], bool]) -> bytes | str:
    """The body, or where it leads."""
    parts = urlsplit(url)
    host = parts.hostname
    if parts.scheme not in _PORTS or not host:
        raise _Refused("it is no http or https URL")
    if parts.username is not None or parts.password is not None:
        raise _Refused("it holds a user's name")
    port = parts.port or _PORTS[parts.scheme]
    sock = _connected(host, port, end, allowed)
    # a server that sends a byte now and then never lets a read time out
    cut = threading.Timer(_left(end), lambda: _shut(sock))
    cut.daemon = True
    cut.start()
    try:
        if parts.scheme == "https":
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
        connection = http.client.HTTPConnection(host, port)
        connection.sock = sock
        connection.request("GET", _target(parts), headers={"accept": "image/*", "user-agent": "hf2q"})
        with connection.getresponse() as response:
            if response.status in _MOVED:
                return response.getheader("location") or ""
            if response.status != 200:
                raise _Refused(f"its server answers {response.status}")
            return _body(response, end, limit)
    finally:
        cut.cancel()
        sock.close()


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _connected(host: str, port: int, end: float, allowed: Callable[[str], bool]) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not found or not all(allowed(str(address[0])) for *_, address in found):
        raise _Refused("its host is not on the open internet")
    sock = socket.create_connection((str(found[0][4][0]), port), timeout=_left(end))
    if not allowed(str(sock.getpeername()[0])):
        sock.close()
        raise _Refused("its host is not on the open internet")
    return sock


def _target(parts: SplitResult) -> str:
    path = parts.path or "/"
    return f"{path}?{parts.query}" if parts.query else path


def _body(response: http.client.HTTPResponse, end: float, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        piece = response.read1(1 << 16)
        _left(end)  # cut off, the answer looks as if it were complete
        if not piece and response.length:
            raise _Refused("its server ended the answer too early")
        if not piece:
            return b"".join(pieces)
        size += len(piece)
        if size > limit:
            raise _Refused(f"it has more than the {limit} bytes accepted")
        pieces.append(piece)


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
