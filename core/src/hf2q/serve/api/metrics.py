"""``GET /metrics``: what has happened so far, in Prometheus' text format.

Three sources: engines are asked for their totals when somebody scrapes; histograms are fed by the engines' events,
through a bounded channel and in a thread of their own; HTTP is counted by `hf2q.serve.api.counting`. All of it belongs
to one `Metrics`, and so to one application: there is no registry of the process.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from litestar import Request, get
from litestar.response.base import ASGIResponse

from hf2q.serve.api import metric_table as table
from hf2q.serve.api.measuring import Measured
from hf2q.serve.api.status import server_status
from hf2q.serve.channel import Channel

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Family

    from hf2q.serve.api.service import Service
    from hf2q.serve.observe import Observer


class Metrics:
    """The metrics of one server.

    http  the counters of `table.HTTP`, by name
    """

    def __init__(self, service: Service) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

        self._service = service
        self.registry: CollectorRegistry = CollectorRegistry()
        self._channel: Channel[str] = Channel()
        self.registry.register(_Collector(service, self._channel))
        self._measured = Measured(self.registry)
        self.http: dict[str, Any] = {}
        for metric in table.HTTP:
            kind = Counter if metric.kind == "counter" else Gauge
            self.http[metric.name] = kind(metric.name, metric.help, metric.labels, registry=self.registry)
        ProcessCollector(registry=self.registry)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        service.watchers.add(self.observer)
        # the thread holds no reference to this object, so it ends when nobody does
        weakref.finalize(self, self._channel.close)

    def observer(self, model: str) -> Observer:
        """What watches the engine of `model`."""
        with self._lock:  # engines begin when they like
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_read, args=(self._channel, self._measured), name="hf2q-metrics", daemon=True
                )
                self._thread.start()
        return self._channel.observer(model)

    def render(self, accept: str) -> tuple[bytes, str]:
        """All of them as text, and its type: what Prometheus' `accept` header prefers."""
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(accept)
        return encode(self.registry), kind


@get("/metrics")
async def metrics(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Metrics in Prometheus' text format."""
    found: Metrics = request.app.state.metrics
    # asking an engine takes its lock: not in the event loop's thread
    body, kind = await asyncio.to_thread(found.render, request.headers.get("accept", ""))
    name, _, parameters = kind.partition(";")
    return ASGIResponse(body=body, headers={"cache-control": "no-store", "content-type": f"{name};{parameters}"})


def _read(channel: Channel[str], measured: Measured) -> None:
    while (found := channel.get()) is not None:
        measured.take(*found)


class _Collector:
    """What is asked for when somebody scrapes."""

    def __init__(self, service: Service, channel: Channel[str]) -> None:
        self._service = service
        self._channel = channel

    def describe(self) -> Iterable[Family]:
        """For the registry, which would collect otherwise to learn the names."""
        return [_family(metric) for metric in (*table.SERVER, table.SLOTS, *(each for each, _ in table.ENGINE))]

    def collect(self) -> Iterator[Family]:
        """Families and their samples."""
        status = server_status(self._service)
        loaded = {each.id: each.engine for each in status.models if each.engine is not None}
        single: dict[table.Metric, float | None] = {
            table.UPTIME: status.uptime_seconds,
            table.READY: status.ready,
            table.LOADED_MODELS: sum(model.loaded for model in status.models),
            table.RESIDENT: self._service.pool.nbytes,
            table.BUDGET: self._service.pool.budget,
            table.DROPPED: self._channel.dropped,
        }
        for metric, value in single.items():
            family = _family(metric)
            if value is not None:
                family.add_metric([], value)
            yield family
        family = _family(table.LOADED)
        for model in status.models:
            family.add_metric([model.id], model.loaded)
        yield family
        family = _family(table.SLOTS)
        for model_id, engine in loaded.items():
            for phase in table.PHASES:
                family.add_metric([model_id, phase], sum(slot.phase == phase for slot in engine.slots))
        yield family
        for metric, read in table.ENGINE:
            family = _family(metric)
            for model_id, engine in loaded.items():
                read_value = read(engine)
                if read_value is not None:
                    family.add_metric([model_id], read_value)
            yield family


def _family(metric: table.Metric) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return made(metric.name, metric.help, labels=metric.labels)
