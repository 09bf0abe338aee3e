"""The listening socket, bound before anything is loaded: a port in use is known at once. Imports nothing heavy."""

from __future__ import annotations

import errno
import ipaddress
import socket

from hf2q.errors import Hf2qError, UsageError

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on `host` and `port`; port 0 takes a free one.

    Errors: UsageError for a host that is not an address of this machine; Hf2qError for a port that cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"host {host!r} cannot be resolved: {error}", hint="--host 127.0.0.1") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _no_port(host, port, error) from error
    return sock


def _no_port(host: str, port: int, error: OSError) -> Hf2qError:
    if error.errno == errno.EADDRINUSE:
        return Hf2qError(f"port {port} of {host} is in use", hint="stop what uses it, or choose another with --port")
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"host {host!r} is not an address of this machine", hint="--host 127.0.0.1")
    return Hf2qError(f"cannot listen on port {port} of {host}: {error.strerror}", hint="choose another with --port")


def url(sock: socket.socket) -> str:
    """Where a listening socket is reached."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(address: str | None) -> bool:
    """Whether an IP address belongs to this machine alone; False for anything that is no IP address."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return False
    inner = getattr(found, "ipv4_mapped", None)
    return (inner or found).is_loopback


def only_this_machine(sock: socket.socket) -> bool:
    """Whether a listening socket can be reached from this machine alone."""
    return is_loopback(sock.getsockname()[0])
