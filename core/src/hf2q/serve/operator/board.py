"""`Board`: the requests as their events tell of them. Pure bookkeeping; the time is given to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hf2q.serve.observe import RequestEvent

ENDED = ("finished", "cancelled", "failed")
LINGER = 8.0
"""Seconds that a request stays in sight after its end."""

FORGOTTEN = 300.0
"""Seconds without an event after which a request is taken for ended, once events have been lost."""

_Key = tuple[str, str, int | None]


@dataclass
class Row:
    """One request in one slot, or `many` that wait under the same id."""

    model: str
    event: RequestEvent
    many: int = 1

    @property
    def ended(self) -> bool:
        """Whether its last event has come."""
        return self.event.kind in ENDED

    @property
    def phase(self) -> str:
        """A word for what is going on."""
        event = self.event
        if self.ended:
            return event.finish_reason or event.kind
        if event.kind in ("queued", "parked"):
            return "waiting" if event.kind == "queued" else "parked"
        return "decode" if event.generated else "prefill"


@dataclass
class Board:
    """All requests in order of arrival, and totals since the start."""

    rows: dict[_Key, Row] = field(default_factory=dict)
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated: int = 0

    def take(self, model: str, event: RequestEvent) -> None:
        """Note an event."""
        key, queued = (model, event.request_id, event.slot), (model, event.request_id, None)
        row = self.rows.get(key)
        if event.kind == "queued":
            if row is not None and not row.ended:
                row.many += 1
            else:
                self._set(key, Row(model, event))
            return
        if row is None or (event.slot is not None and row.ended):
            self._leave(queued)
            row = self._set(key, Row(model, event))
        elif event.slot is None and row.many > 1:  # one of several that wait ended before it had a slot
            row.many -= 1
        else:
            row.event = event
        if event.kind in ENDED:
            self._count(event)

    def _set(self, key: _Key, row: Row) -> Row:
        self.rows.pop(key, None)  # a new request goes to the end
        self.rows[key] = row
        return row

    def _leave(self, queued: _Key) -> None:
        row = self.rows.get(queued)
        if row is None or row.ended:
            return
        row.many -= 1
        if not row.many:
            del self.rows[queued]

    def _count(self, event: RequestEvent) -> None:
        setattr(self, event.kind, getattr(self, event.kind) + 1)
        self.prompt_tokens += event.prompt_tokens if event.slot is not None else 0
        self.cached_tokens += event.cached_tokens
        self.generated += event.generated

    def prune(self, now: float, *, lost: bool) -> None:
        """Let go what has ended a while ago and, if events were `lost`, what nothing was heard of for long."""
        for key, row in list(self.rows.items()):
            age = now - row.event.time
            if (row.ended and age > LINGER) or (lost and age > FORGOTTEN):
                del self.rows[key]

    @property
    def active(self) -> int:
        """Requests in slots."""
        return sum(not row.ended and row.event.slot is not None for row in self.rows.values())

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return sum(row.many for row in self.rows.values() if not row.ended and row.event.slot is None)

    @property
    def decode_rate(self) -> float:
        """Tokens per second of all that generate."""
        return sum(row.event.rate for row in self.rows.values() if row.phase == "decode")
