"""Who may use a server, from the options of ``hf2q serve``: keys, names, origins."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from hf2q.errors import MissingFileError, UsageError

KEY_VARIABLE = "HF2Q_API_KEY"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+", re.IGNORECASE)
_HOST = re.compile(r"\*|(\*\.)?[A-Za-z0-9._-]+|[0-9A-Fa-f:]+")


def read_keys(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """All API keys: those given, those in the file (one a line; empty lines and ``#`` lines are none), and that of the
    environment.

    Errors: UsageError for a key that no header can carry; MissingFileError.
    """
    keys = list(given)
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError as error:
            raise MissingFileError(f"there is no file {file}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"--api-key-file {file} is not UTF-8 text") from error
        found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not found:
            raise UsageError(f"--api-key-file {file} holds no key", hint="one key a line")
        keys += found
    if os.environ.get(KEY_VARIABLE):
        keys.append(os.environ[KEY_VARIABLE])
    for number, key in enumerate(keys, 1):
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise UsageError(
                f"API key {number} of {len(keys)} is empty, or holds blanks or characters that are not ASCII",
                hint="openssl rand -hex 32 makes a good one",
            )
    return tuple(dict.fromkeys(keys))


def check_open(address: str, *, keys: Sequence[str], allowed: bool, local: bool) -> None:
    """Errors: UsageError for a server that others could use without a key, and for options that contradict."""
    if keys and allowed:
        raise UsageError(
            "--allow-unauthenticated contradicts the API keys that are given", hint="leave one of them out"
        )
    if not local and not keys and not allowed:
        raise UsageError(
            f"{address} can be reached from other machines, and no API key is given",
            hint=f"--api-key-file FILE or {KEY_VARIABLE}; --allow-unauthenticated lets everybody in who can reach it",
        )


def allowed_hosts(names: Sequence[str], *, host: str, local: bool, keys: bool) -> frozenset[str] | None:
    """What the Host header may say, see `hf2q.serve.api.settings.ApiSettings.hosts`.

    A server for this machine goes by its local names; one for others by any IP address and by the machine's names,
    unless it asks for keys: then no page that somebody visits can use it, whatever it calls it. Errors: UsageError.
    """
    from hf2q.serve.api.settings import ANY_IP, LOOPBACK

    for name in names:
        if not _HOST.fullmatch(name):
            raise UsageError(
                f"--allowed-host {name!r} is no name of a host", hint="without scheme and port: --allowed-host box.lan"
            )
    if "*" in names or (keys and not local and not names):
        return None
    found = {name.lower() for name in names} | set(LOOPBACK)
    if not local:
        own = socket.gethostname().lower()
        found |= {ANY_IP, host.lower(), own, f"{own.partition('.')[0]}.local"}
    return frozenset(found)


def check_origins(origins: Sequence[str]) -> frozenset[str]:
    """Errors: UsageError for what no browser sends as an origin."""
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise UsageError(
                f"--cors-origin {origin!r} is no origin", hint="--cors-origin https://app.example, without a path; or *"
            )
    return frozenset(origins)
