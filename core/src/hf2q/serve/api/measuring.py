"""`Measured`: the histograms, from what engines tell of their requests."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from hf2q.serve.api import metric_table as table
from hf2q.serve.observe import RequestEvent

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_ENDS = ("finished", "cancelled", "failed")
_MOST_OPEN = 4096
"""Requests that are followed at a time: one whose end was dropped must not stay for ever."""

_MOST_AT_ONCE = 10_000
"""Tokens of one event that are counted one by one."""


class Measured:
    """The histograms of `table.HISTOGRAMS` in `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Histogram

        self._histograms: dict[table.Metric, Any] = {
            metric: Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry)
            for metric in table.HISTOGRAMS
        }
        # of each request that generates: tokens and seconds of decoding that are counted already
        self._open: OrderedDict[tuple[str, str, int | None], tuple[int, float]] = OrderedDict()

    def take(self, model: str, event: RequestEvent) -> None:
        """Count what `event` tells."""
        key = (model, event.request_id, event.slot)
        if event.kind == "started":
            self._observe(table.QUEUE_SECONDS, event.queue_seconds, model)
        elif event.kind == "first_token":
            self._observe(table.FIRST_TOKEN, event.first_token_seconds, model)
            if event.new_tokens > 0 and event.prefill_seconds > 0:
                self._observe(table.PREFILL_RATE, event.new_tokens / event.prefill_seconds, model)
            self._open[key] = (event.generated, event.decode_seconds)
            if len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        elif event.kind == "decoding" or event.kind in _ENDS:
            self._tokens(key, event)
        if event.kind in _ENDS:
            self._open.pop(key, None)
            seconds = event.queue_seconds + event.prefill_seconds + event.decode_seconds
            self._observe(table.REQUEST_SECONDS, seconds, model, event.kind)
            if event.generated > 1 and event.decode_seconds > 0:
                self._observe(table.DECODE_RATE, (event.generated - 1) / event.decode_seconds, model)

    def _tokens(self, key: tuple[str, str, int | None], event: RequestEvent) -> None:
        if key not in self._open:
            return
        tokens, seconds = self._open[key]
        new = event.generated - tokens
        if new <= 0:
            return
        self._open[key] = (event.generated, event.decode_seconds)
        mean = max(event.decode_seconds - seconds, 0.0) / new
        for _ in range(min(new, _MOST_AT_ONCE)):
            self._observe(table.INTER_TOKEN, mean, key[0])

    def _observe(self, metric: table.Metric, value: float, *labels: str) -> None:
        self._histograms[metric].labels(*labels).observe(value)
