"""The names, kinds, labels and meanings of all metrics: `hf2q.serve.api.metrics` counts by it, the docs are made of it.

Seconds, bytes and tokens; a name says which. Counters begin anew with the process, those of a model with its loading.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from hf2q.serve.observe import EngineStats
from hf2q.types import Record

Kind = Literal["gauge", "counter", "histogram"]


class Metric(Record, frozen=True, kw_only=True):
    """One metric. `buckets` of a histogram: upper bounds."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric(name=f"hf2q_{name}", kind="gauge", help=help, labels=labels)


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(name=f"hf2q_{name}_total", kind="counter", help=help, labels=labels)


# ------------------------------------------------------------------------------------------------------- the server

UPTIME = _gauge("uptime_seconds", "seconds since the server started")
READY = _gauge("ready", "1 while requests are taken, as /readyz says")
LOADED = _gauge("model_loaded", "1 for a model in memory, 0 for one that would have to be loaded", "model")
LOADED_MODELS = _gauge("pool_loaded_models", "models in memory")
RESIDENT = _gauge("pool_resident_bytes", "bytes of the files of the models in memory")
BUDGET = _gauge("pool_memory_budget_bytes", "bytes that they may take together; absent without a limit")
DROPPED = _counter("events_dropped", "events that the histograms lack since they came faster than they were counted")
SERVER = (UPTIME, READY, LOADED, LOADED_MODELS, RESIDENT, BUDGET, DROPPED)

RESPONSES = _counter("http_responses", "responses sent, by route and status", "route", "status")
IN_FLIGHT = _gauge("http_requests_in_flight", "requests that are being answered")
CANCELLED_STREAMS = _counter("sse_cancellations", "streams that ended since the client went away")
CHATS_STARTED = _counter("chat_completions_started", "chat completions asked for")
CHATS_COMPLETED = _counter("chat_completions_completed", "chat completions answered to the end, with status 200")
CHATS_REFUSED = _counter("chat_completions_queue_full", "chat completions refused with 429")
HTTP = (RESPONSES, IN_FLIGHT, CANCELLED_STREAMS, CHATS_STARTED, CHATS_COMPLETED, CHATS_REFUSED)

# ------------------------------------------------------------------------------------------------- each loaded model

PHASES = ("idle", "prefill", "decode", "parked")
SLOTS = _gauge("slots", "slots by what they do: idle, prefill, decode, parked", "model", "phase")

ENGINE: tuple[tuple[Metric, Callable[[EngineStats], float | None]], ...] = (
    (_counter("requests", "requests accepted", "model"), lambda e: e.accepted),
    (_counter("requests_rejected", "requests refused: the queue full, the engine failed or closing", "model"),
     lambda e: e.refused),
    (_counter("requests_finished", "requests that ended by themselves", "model"), lambda e: e.finished),
    (_counter("requests_cancelled", "requests that were cancelled", "model"), lambda e: e.cancelled),
    (_counter("requests_failed", "requests that ended with an error", "model"), lambda e: e.failed),
    (_gauge("queue_requests", "requests that wait for a slot", "model"), lambda e: e.queued),
    (_gauge("queue_capacity", "requests that may wait", "model"), lambda e: e.queue_capacity),
    (_counter("prompt_tokens", "tokens of prompts of requests that have started", "model"), lambda e: e.prompt_tokens),
    (_counter("prompt_tokens_cached", "of these, tokens that were not computed again", "model"),
     lambda e: e.cached_tokens),
    (_counter("decode_tokens", "tokens generated", "model"), lambda e: e.generated_tokens),
    (_counter("decode_steps", "steps of decoding", "model"), lambda e: e.decode_steps),
    (_counter("decode_rows", "rows of all these steps; divided by them it is the mean batch", "model"),
     lambda e: e.decode_rows),
    (_counter("kv_lcp_lookups", "prompts whose beginning was looked for in the prefix store", "model"),
     lambda e: e.prefix_lookups),
    (_counter("kv_lcp_detected", "of these, prompts whose beginning was found", "model"), lambda e: e.prefix_hits),
    (_counter("kv_lcp_evictions", "states dropped from the prefix store to make room", "model"),
     lambda e: e.prefix_evictions),
    (_gauge("kv_lcp_entries", "states in the prefix store", "model"), lambda e: e.prefix_entries),
    (_gauge("kv_lcp_bytes", "memory that they take", "model"), lambda e: e.prefix_bytes),
    (_gauge("kv_lcp_budget_bytes", "memory that they may take", "model"), lambda e: e.prefix_budget),
    (_gauge("kv_cache_bytes", "memory of all caches, the prefix store included", "model"), lambda e: e.kv_bytes),
    (_gauge("kv_cache_budget_bytes", "memory that they may take; absent without a limit", "model"),
     lambda e: e.kv_budget),
)  # fmt: skip
"""What is read off `EngineStats` when somebody asks; None leaves a sample out."""

# ------------------------------------------------------------------------------------------------------- histograms

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_RATES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0)


def _histogram(name: str, help: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(name=f"hf2q_{name}", kind="histogram", help=help, labels=("model", *labels), buckets=buckets)


QUEUE_SECONDS = _histogram("queue_seconds", "seconds that a request waited for a slot", _SLOW)
FIRST_TOKEN = _histogram("time_to_first_token_seconds", "seconds from acceptance to the first token", _SLOW)
INTER_TOKEN = _histogram(
    "inter_token_seconds",
    "seconds from one token of an answer to the next, each the mean of about half a second",
    _FAST,
)
REQUEST_SECONDS = _histogram(
    "request_seconds", "seconds from acceptance to the end; outcome is finished, cancelled or failed", _SLOW, "outcome"
)
PREFILL_RATE = _histogram(
    "prefill_tokens_per_second", "prompt tokens computed per second, of each request that had any", _RATES
)
DECODE_RATE = _histogram(
    "decode_tokens_per_second", "tokens generated per second after the first, of each answer that had any", _RATES
)
HISTOGRAMS = (QUEUE_SECONDS, FIRST_TOKEN, INTER_TOKEN, REQUEST_SECONDS, PREFILL_RATE, DECODE_RATE)

METRICS: tuple[Metric, ...] = (*SERVER, *HTTP, SLOTS, *(metric for metric, _ in ENGINE), *HISTOGRAMS)
"""All of them, in the order of the docs."""


def markdown() -> str:
    """The table of docs/reference/metrics.md."""
    rows = [("metric", "kind", "labels", "what it is"), ("---",) * 4]
    rows += [(f"`{m.name}`", m.kind, ", ".join(f"`{label}`" for label in m.labels), m.help) for m in METRICS]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
