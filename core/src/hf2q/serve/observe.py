"""What an engine tells those who watch it: an event when something happens to a request, and a snapshot at any time.

No text and no token of any request is in here. Imports nothing heavy.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from hf2q.types import Record

SlotPhase: TypeAlias = Literal["idle", "prefill", "decode", "parked"]
"""What a slot is doing; *parked* waits for memory that others hold."""

EventKind: TypeAlias = Literal[
    "queued", "started", "prefill", "parked", "resumed", "first_token", "decoding", "finished", "cancelled", "failed"
]
"""What happened to a request. Exactly one of the last three is its last event.

queued       it was accepted and waits
started      it has a slot
prefill      a piece of its prompt was computed
parked       it must wait until others give memory back;  resumed  it goes on
first_token  its first token was generated
decoding     it is generating: at most a few times a second, not with each token
finished     it ended by itself ("stop" or "length");  cancelled  it was cancelled;  failed  it ended with an error
"""

DECODING_EVERY = 0.5
"""Least seconds between two "decoding" events of one request."""


class RequestEvent(Record, frozen=True, kw_only=True):
    """One thing that happened to one request.

    kind, request_id, slot  slot None while the request is queued
    time                    `time.time()` of it
    prompt_tokens           tokens of the prompt;  cached_tokens  of them, those whose state was there already
    done_tokens             prompt tokens fed so far, the cached ones included
    generated               tokens generated so far
    rate                    tokens per second: of new prompt tokens up to the first token, then of generated ones
    eta_seconds             until the prompt is done; None where it cannot be told
    finish_reason           "stop", "length" or "cancelled", of the last event; None for a failure
    error                   what a failed request was told
    queue_seconds, prefill_seconds, decode_seconds  waited; from the start to the first token; from there: so far
    """

    kind: EventKind
    request_id: str
    slot: int | None
    time: float
    prompt_tokens: int
    cached_tokens: int = 0
    done_tokens: int = 0
    generated: int = 0
    rate: float = 0.0
    eta_seconds: float | None = None
    finish_reason: str | None = None
    error: str | None = None
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that have to be computed."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def first_token_seconds(self) -> float:
        """From acceptance to the first token, once there was one."""
        return self.queue_seconds + self.prefill_seconds


class Observer(Protocol):
    """Watches an engine."""

    def on(self, event: RequestEvent) -> None:
        """Take note of an event, in the thread of the engine's worker or of a caller of `submit`.

        It must return at once: everything waits for it. What it raises is logged and goes no further.
        """
        ...


class SlotStatus(Record, frozen=True, kw_only=True):
    """A slot at one moment; the numbers as in `RequestEvent`, 0 and "" when it is idle.

    kv_bytes  memory that its caches take, or are about to
    """

    index: int
    request_id: str = ""
    phase: SlotPhase = "idle"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    done_tokens: int = 0
    generated: int = 0
    rate: float = 0.0
    eta_seconds: float | None = None
    kv_bytes: int = 0


class EngineStats(Record, frozen=True, kw_only=True):
    """An engine at one moment. Totals count from its start, and only grow.

    ready, failure          whether it accepts requests; what broke it, or None
    slots                   all of them, by index
    queued, queue_capacity  requests that wait for a slot, and how many may
    accepted, finished, cancelled, failed  requests: accepted by `submit`, and how they ended
    refused                 requests refused since the queue was full, or the engine failed or closing
    prompt_tokens           of requests that have started;  cached_tokens  of these, not computed again
    generated_tokens        all tokens generated
    decode_steps, decode_rows  steps of decoding, and tokens that came of them: their quotient is the batch size
    prefix_lookups, prefix_hits  prompts whose beginning was looked for in the prefix store, and found
    prefix_entries, prefix_bytes, prefix_budget, prefix_evictions  the store: states, their bytes, most bytes, and how
                            many were dropped to make room
    kv_bytes, kv_budget     memory of all caches, those of the prefix store included; None: no limit is known
    """

    ready: bool
    failure: str | None
    slots: tuple[SlotStatus, ...]
    queued: int
    queue_capacity: int
    accepted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    decode_steps: int = 0
    decode_rows: int = 0
    prefix_lookups: int = 0
    prefix_hits: int = 0
    prefix_entries: int = 0
    prefix_bytes: int = 0
    prefix_budget: int = 0
    prefix_evictions: int = 0
    kv_bytes: int = 0
    kv_budget: int | None = None

    @property
    def active(self) -> int:
        """Slots that hold a request."""
        return sum(slot.phase != "idle" for slot in self.slots)
