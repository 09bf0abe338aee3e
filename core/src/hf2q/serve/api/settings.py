"""Limits of the HTTP server that are nobody's business but its own."""

from __future__ import annotations

from hf2q.types import Record


class ApiSettings(Record, frozen=True, kw_only=True):
    """max_body: longest request body in bytes; ping_s: seconds of silence after which a stream sends a comment."""

    max_body: int = 32 << 20
    ping_s: float = 15.0
