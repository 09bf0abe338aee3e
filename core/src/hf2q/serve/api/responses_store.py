"""Responses that are kept, so that they can be read again and continued: the latest ones, within bounds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import msgspec

from hf2q.serve.api.chat_messages import ImageRef
from hf2q.serve.api.errors import HttpRefusal
from hf2q.serve.api.responses_schema import Response
from hf2q.serve.chat import Message
from hf2q.types import Record


class Kept(Record, frozen=True, kw_only=True):
    """A response, with what another needs to go on from it.

    items     the input as it was sent, without that of earlier responses
    messages  the whole dialogue, this response's answer included, and without instructions
    images    those in the messages, in order
    """

    response: Response
    items: tuple[Any, ...]
    messages: tuple[Message, ...] = ()
    images: tuple[ImageRef, ...] = ()


class ResponseStore:
    """Keeps the `most` latest responses of `most_bytes` together. Each is seen by its own tenant alone. Thread-safe."""

    def __init__(self, most: int = 1024, most_bytes: int = 64 << 20) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], tuple[Kept, int]] = OrderedDict()
        self._bytes = 0

    def put(self, tenant: str, kept: Kept) -> None:
        """Keep it, or what it has become; others make room, the longest unused first."""
        key, size = (tenant, kept.response.id), len(msgspec.json.encode(kept))
        with self._lock:
            self._drop(key)
            self._kept[key] = kept, size
            self._bytes += size
            while self._kept and (len(self._kept) > self._most or self._bytes > self._most_bytes):
                self._drop(next(iter(self._kept)))

    def get(self, tenant: str, id: str, param: str | None = None) -> Kept:
        """The response `id`. Errors: HttpRefusal 404."""
        with self._lock:
            found = self._kept.get((tenant, id))
            if found is not None:
                self._kept.move_to_end((tenant, id))
                return found[0]
        raise HttpRefusal(
            f"there is no stored response {id[:100]!r}: it was never stored, or newer ones have displaced it",
            status=404,
            param=param,
            code="response_not_found",
        )

    def drop(self, tenant: str, id: str) -> None:
        """Forget it, if it is there."""
        with self._lock:
            self._drop((tenant, id))

    def _drop(self, key: tuple[str, str]) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._bytes -= found[1]
