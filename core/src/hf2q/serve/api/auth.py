"""API keys: what a request must carry, and whose it is."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Sequence

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from hf2q.serve.api.errors import HttpRefusal
from hf2q.serve.api.keys import digest
from hf2q.serve.api.wire import header, refuse

__all__ = ["HEALTH", "Auth", "digest", "tenant"]

_KEY = "hf2q_tenant"
HEALTH = frozenset({"/health", "/readyz"})


def tenant(scope: Scope) -> str:
    """Whose request it is: a text of its own for each API key, "" where none is needed. Not the key."""
    return str(scope["state"].get(_KEY, ""))


class Auth:
    """Wraps an ASGI app: every path needs one of the keys, also those that lead nowhere.

    keys    digests; without any, everything passes
    public  paths that need none
    """

    def __init__(self, app: ASGIApp, keys: Sequence[bytes], *, public: Collection[str] = ()) -> None:
        self._app = app
        self._keys = tuple(keys)
        self._public = frozenset(public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if not self._keys or scope["type"] != ScopeType.HTTP or scope["path"] in self._public:
            await self._app(scope, receive, send)
            return
        scheme, _, given = header(scope, b"authorization").partition(b" ")
        found = self._matching(given.strip()) if scheme.lower() == b"bearer" else None
        if found is None:
            await refuse(scope, send, _refused(bool(given.strip())))
            return
        scope["state"][_KEY] = found.hex()[:32]
        await self._app(scope, receive, send)

    def _matching(self, given: bytes) -> bytes | None:
        """The digest of the key given. Every key is compared, in time that does not depend on what was given."""
        own = hashlib.sha256(given).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key, own):
                found = key
        return found


def _refused(given: bool) -> HttpRefusal:
    message = "the API key is not one of this server's" if given else "this server needs an API key"
    return HttpRefusal(
        message,
        status=401,
        kind="authentication_error",
        hint="authorization: Bearer KEY",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )
